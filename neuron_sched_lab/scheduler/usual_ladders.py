"""Ladders of other accelerators, and how ladders compare on lengths they were not fitted to.

Every accelerator with static shapes has its rule. Neuron's is in `buckets.py`; here are TPU's and
Gaudi's, each closed by the maximum as the seed demands, and the comparison of any of them.

Source: vLLM's TPU model runner (`_get_token_paddings`, VLLM_TPU_BUCKET_PADDING_GAP); vllm-gaudi's
`bucketing/linear.py` and `bucketing/padding_aware.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from .buckets import powers_of_two_ladder
from .ladders import Cost, IntArray, pad_lengths, padding_waste

MAX_PADDING_PERCENT = 50
"""Doubling pads a tensor by at most half; a limit above that would never bind."""


def gap_ladder(first: int, last: int, gap: int) -> list[int]:
    """Return powers-of-two multiples of `first` up to `gap`, then steps of `gap` (TPU).

    The relative waste of small sizes is bounded by the doubling, the absolute waste of large ones
    by the gap.
    """
    _check_steps(first=first, gap=gap, last=last)
    ladder = powers_of_two_ladder(first, last)
    doubled = [bucket for bucket in ladder if bucket <= gap] or ladder[:1]
    return _close([*doubled, *range(doubled[-1] + gap, last, gap)], last)


def linear_ladder(first: int, last: int, step: int) -> list[int]:
    """Return powers-of-two multiples of `first` below `step`, then multiples of `step` (Gaudi)."""
    _check_steps(first=first, step=step, last=last)
    doubled = [bucket for bucket in powers_of_two_ladder(first, last) if bucket < step]
    return _close([*doubled, *(b for b in range(step, last, step) if b >= first)], last)


def padding_aware_ladder(
    first: int,
    last: int,
    step: int,
    *,
    max_padding: int | None = None,
    max_padding_percent: float = 25,
) -> list[int]:
    """Return multiples of `step` thinned out as far as the padding limits allow (Gaudi).

    Doubling from `first` until `step` is passed, then a multiple of `step` is kept if without it
    the next one would pad more than a limit, or if it is a multiple of `max_padding`.

    Args:
        first: smallest bucket, in tokens.
        last: largest bucket.
        step: distance of the candidates.
        max_padding: most padding tokens of one tensor; None is a quarter of `last`, rounded up.
        max_padding_percent: most padding in percent of the bucket, 0 to 50.
    """
    _check_steps(first=first, step=step, last=last)
    limit = -(-last // 4) if max_padding is None else max_padding
    if limit < 1:
        raise ValueError(f"max_padding: {limit} must be at least 1 token, or None")
    if not 0 <= max_padding_percent <= MAX_PADDING_PERCENT:
        raise ValueError(
            f"max_padding_percent: {max_padding_percent} must be between 0 and "
            f"{MAX_PADDING_PERCENT}"
        )
    ladder = [first]
    while ladder[-1] <= step and 2 * ladder[-1] <= last:
        ladder.append(2 * ladder[-1])
    for size in range(ladder[-1] + step, last, step):
        following = size + step
        padding = following - ladder[-1] - 1
        if padding > limit or padding > following * max_padding_percent / 100 or size % limit == 0:
            ladder.append(size)
    return _close(ladder, last)


def usual_ladders(max_num_batched_tokens: int, block_size: int = 128) -> dict[str, list[int]]:
    """Return the four usual prefill ladders by name, each with its makers' default settings.

    TPU has no default gap (0 means powers of two from 16); four blocks are taken.
    """
    last, block = max_num_batched_tokens, min(block_size, max_num_batched_tokens)
    return {
        "powers of two (Neuron)": powers_of_two_ladder(block, last),
        "gap (TPU)": gap_ladder(min(16, last), last, 4 * block),
        "padding-aware (Gaudi)": padding_aware_ladder(block, last, block),
        "linear (Gaudi)": linear_ladder(block, last, block),
    }


@dataclass(frozen=True)
class LadderScore:
    """What a ladder costs for a sample of lengths.

    Attributes:
        name: as given to `compare_ladders`.
        ladder: its buckets.
        num_graphs: buckets, hence graphs to compile.
        padded_tokens: tokens computed, padding included.
        waste: share of them that is padding.
        cost: summed time under a cost function; None without one.
    """

    name: str
    ladder: tuple[int, ...]
    num_graphs: int
    padded_tokens: int
    waste: float
    cost: float | None


def compare_ladders(
    lengths: ArrayLike, ladders: Mapping[str, Sequence[int]], cost: Cost | None = None
) -> list[LadderScore]:
    """Return the score of each ladder for the same lengths, in the order given."""
    return [score_ladder(name, lengths, ladder, cost) for name, ladder in ladders.items()]


def score_ladder(
    name: str, lengths: ArrayLike, ladder: Sequence[int], cost: Cost | None = None
) -> LadderScore:
    """Return the score of one ladder."""
    padded = pad_lengths(lengths, ladder)
    total = None
    if cost is not None:
        total = float(sum(cost(bucket) * int((padded == bucket).sum()) for bucket in ladder))
    return LadderScore(
        name=name,
        ladder=tuple(ladder),
        num_graphs=len(ladder),
        padded_tokens=int(padded.sum()),
        waste=padding_waste(lengths, ladder),
        cost=total,
    )


@dataclass(frozen=True)
class HeldOut:
    """A ladder fitted to one half of the lengths, judged on the other.

    Attributes:
        ladder: fitted to the first half.
        fit_waste: its waste there, lower than can be expected of other lengths.
        test_waste: its waste on the second half: what to expect in future.
        best_waste: waste on the second half of the ladder fitted to that half.
    """

    ladder: tuple[int, ...]
    fit_waste: float
    test_waste: float
    best_waste: float


def evaluate_held_out(lengths: IntArray, fit: Callable[[IntArray], Sequence[int]]) -> HeldOut:
    """Fit a ladder to the first half of `lengths` and test it on the second.

    Args:
        lengths: chunk lengths in order of arrival, so that the split is the past and the future.
        fit: makes a ladder that holds every length, such as a partial of `optimal_buckets`.
    """
    if len(lengths) <= 1:
        raise ValueError(f"lengths: {len(lengths)} of them; two halves need at least 2")
    past, future = lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]
    ladder = tuple(fit(past))
    return HeldOut(
        ladder=ladder,
        fit_waste=padding_waste(past, ladder),
        test_waste=padding_waste(future, ladder),
        best_waste=padding_waste(future, fit(future)),
    )


def _close(ladder: Sequence[int], last: int) -> list[int]:
    return [*(bucket for bucket in ladder if bucket < last), last]


def _check_steps(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: {size} must be at least 1 token")
    if sizes["first"] > sizes["last"]:
        raise ValueError(
            f"first: {sizes['first']} must not exceed last = {sizes['last']}; lower it"
        )
