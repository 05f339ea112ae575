"""Bucket ladders: the tensor sizes that a static-shape device has compiled graphs for.

Trainium runs compiled graphs, and a graph has fixed tensor shapes. A ladder is the ascending
list of the sizes that were compiled; a batch is padded up to the next rung. These functions are
pure: lesson 1 builds them, `config.py` applies them to a vLLM configuration.

Source: the seed, "Bucket Configuration" and "Padding Algorithm".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

MIN_NUM_BATCHED_TOKENS_BUCKET = 128


def get_bucket_for_count(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `count`.

    Args:
        count: number of tokens or of sequences, at least 1.
        buckets: ascending ladder.

    Raises:
        ValueError: `count` is below 1 or above the last bucket. (Neuron's plugin answers a count
            beyond the ladder with the largest bucket; that hides the mistake until the tensors
            do not fit, so it is refused here.)
    """
    if count < 1:
        raise ValueError(f"count: {count} must be at least 1; nothing scheduled needs no bucket")
    index = bisect_left(buckets, count)
    if index == len(buckets):
        raise ValueError(
            f"count: {count} does not fit the largest bucket of {list(buckets)}; "
            f"append {count} to the ladder or schedule fewer"
        )
    return buckets[index]


def powers_of_two_ladder(first: int, last: int) -> list[int]:
    """Return the powers-of-two multiples of `first` below `last`, closed by `last` itself.

    The seed's generator stops at the largest power of two that fits. For a maximum that is no
    power of two, that ladder breaks the seed's own rule that the last bucket equals the maximum,
    and a full chunk then finds no bucket (hole B8): `last` therefore always closes the ladder.
    """
    if last < 1:
        raise ValueError(f"last: {last} must be at least 1; a ladder holds at least one token")
    ladder = []
    bucket = first
    while bucket < last:
        ladder.append(bucket)
        bucket *= 2
    return [*ladder, last]


def get_default_num_batched_tokens_buckets(max_num_batched_tokens: int) -> list[int]:
    """Return the default prefill ladder, in tokens: powers of two from 128, closed by the maximum.

    Args:
        max_num_batched_tokens: already `min(max_num_batched_tokens, max_model_len)`.
    """
    return powers_of_two_ladder(MIN_NUM_BATCHED_TOKENS_BUCKET, max_num_batched_tokens)


def get_default_num_seqs_buckets(max_num_seqs: int) -> list[int]:
    """Return the default decode ladder, in sequences: powers of two from 1, then the maximum."""
    return powers_of_two_ladder(1, max_num_seqs)


def validate_buckets(name: str, buckets: object, *, last: int, last_rule: str) -> tuple[int, ...]:
    """Return `buckets` as a tuple if it is a valid ladder.

    Args:
        name: the setting, for the error text.
        buckets: what the user gave: a list or tuple of ascending positive ints.
        last: what the last bucket must equal.
        last_rule: how `last` came about, such as `max_num_seqs`.

    Raises:
        ValueError: names the setting, the value found, the rule and the fix.
    """
    if not isinstance(buckets, (list, tuple)):
        raise ValueError(
            f"{name}: {buckets!r} is a {type(buckets).__name__}; it must be a list of ints, "
            f"such as [{last}]"
        )
    if not buckets:
        raise ValueError(f"{name}: the list is empty; give at least [{last}] or leave the key out")
    for bucket in buckets:
        _check_bucket(name, bucket)
    for smaller, larger in pairwise(buckets):
        if smaller == larger:
            raise ValueError(f"{name}: {larger} stands twice; remove one of them")
        if smaller > larger:
            raise ValueError(
                f"{name}: {larger} follows {smaller}; buckets must ascend, "
                f"use {sorted(set(buckets))}"
            )
    if buckets[-1] != last:
        setting = name.removesuffix("_buckets")
        fix = (
            f"append {last} or lower max_{setting}"
            if buckets[-1] < last
            else f"end the list with {last}, nothing larger is ever scheduled"
        )
        raise ValueError(
            f"{name}: last bucket {buckets[-1]} must equal {last_rule} = {last}; {fix}"
        )
    return tuple(buckets)


def _check_bucket(name: str, bucket: object) -> None:
    # bool is an int in Python; True as a bucket is a mistake, never a size of 1.
    if isinstance(bucket, bool) or not isinstance(bucket, int):
        raise ValueError(
            f"{name}: {bucket!r} is a {type(bucket).__name__}; every bucket must be an int"
        )
    if bucket < 1:
        raise ValueError(f"{name}: {bucket} is not positive; remove it, the smallest size is 1")
