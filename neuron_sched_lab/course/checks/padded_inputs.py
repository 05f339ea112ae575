"""Checks of padded inputs: a learner's slots, prefill and decode tensors against the packaged ones.

    check_slots(my_get_slots)
    check_prefill_inputs(my_pad_prefill)
    check_decode_inputs(my_pad_decode)

The first cases are the worked examples of the seed, the rest are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...runner.inputs import (
    PADDING_SLOT,
    UNUSED_BLOCK,
    Int32Array,
    compute_slots,
    pad_decode,
    pad_prefill,
)
from .functions_and_values import ValueRule, compare_functions
from .result import NOT_RIGHT, CheckResult, require

NUM_DRAWN = 20
FIRST_TOKEN = 3
"""Lower ids are padding and the tiny model's special tokens."""


def check_slots(yours: Callable[..., Any]) -> CheckResult:
    """Check a function (block_table, positions, block_size) that returns the slots.

    Raises:
        NotSolvedError: it is not solved, and NSL_REQUIRE_SOLVED is 1.
    """
    return require(compare_slots(yours))


def check_prefill_inputs(yours: Callable[..., Any]) -> CheckResult:
    """Check a function that takes and returns what `pad_prefill` does; see `check_slots`."""
    return require(compare_prefill_inputs(yours))


def check_decode_inputs(yours: Callable[..., Any]) -> CheckResult:
    """Check a function that takes and returns what `pad_decode` does; see `check_slots`."""
    return require(compare_decode_inputs(yours))


def compare_slots(yours: Callable[..., Any]) -> CheckResult:
    """Do what `check_slots` does, and never raise; so do the other two."""
    rule = ValueRule(
        "slot",
        "slot = block * block_size + position % block_size",
        lambda *arguments: list(arguments[-1]) == get_slots(*arguments[:3]).tolist(),
    )
    return compare_functions(yours, get_slots, _slot_cases(), [rule])


def compare_prefill_inputs(yours: Callable[..., Any]) -> CheckResult:  # noqa: D103
    return _compare_inputs(yours, pad_prefill, _prefill_cases(), _prefill_rules())


def compare_decode_inputs(yours: Callable[..., Any]) -> CheckResult:  # noqa: D103
    return _compare_inputs(yours, pad_decode, _decode_cases(), _decode_rules())


def get_slots(block_table: Int32Array, positions: Int32Array, block_size: int) -> Int32Array:
    """Return the slot of each position of one request."""
    return compute_slots(block_table[positions // block_size], positions, block_size)


def _compare_inputs(
    yours: Callable[..., Any],
    packaged: Callable[..., Any],
    cases: list[dict[str, Any]],
    rules: Sequence[ValueRule],
) -> CheckResult:
    result = compare_functions(yours, packaged, cases, rules)
    if not result.solved:
        return result
    # Equal numbers are not enough for a graph: it was compiled for one type of tuple and number.
    found, expected = yours(**cases[0]), packaged(**cases[0])
    if type(found) is not type(expected):
        kind = type(expected).__name__
        return CheckResult(NOT_RIGHT, f"you returned a {type(found).__name__}; return a {kind}")
    for name, array in found._asdict().items():
        if getattr(expected, name) is None:  # adapter_slots: this engine has no LoRA
            continue
        dtype = getattr(array, "dtype", type(array).__name__)
        if dtype != np.int32:
            message = f"{name} is {dtype}; every array must be int32, as NKI has no 64-bit type"
            return CheckResult(NOT_RIGHT, message)
    return result


def _array(numbers: Sequence[int]) -> Int32Array:
    return np.array(numbers, dtype=np.int32)


def _table(blocks: Sequence[int], max_blocks: int) -> Int32Array:
    """Return a row of vLLM's block table: 0 where unused."""
    return _array([*blocks, *[0] * (max_blocks - len(blocks))])


def _slot_cases() -> list[tuple[Int32Array, Int32Array, int]]:
    cases = [(_array([4, 9]), _array([62, 63, 64, 65]), 64)]
    rng = random.Random("slots")
    for _ in range(NUM_DRAWN):
        block_size = rng.choice([16, 32, 64])
        blocks = rng.sample(range(1, 99), 6)
        end = rng.randint(2, 6 * block_size)
        cases.append((_array(blocks), _array(range(end - rng.randint(1, end), end)), block_size))
    return cases


def _prefill_case(
    num_computed: int, num_tokens: int, bucket: int, block_size: int, blocks: Sequence[int]
) -> dict[str, Any]:
    return {
        "token_ids": _array(range(FIRST_TOKEN, FIRST_TOKEN + num_tokens)),
        "block_table": _table(blocks, -(-(num_computed + bucket) // block_size) + 2),
        "num_computed_tokens": num_computed,
        "num_padded_tokens": bucket,
        "block_size": block_size,
    }


def _prefill_cases() -> list[dict[str, Any]]:
    cases = [
        _prefill_case(0, 200, 256, 16, range(1, 14)),
        _prefill_case(52, 40, 64, 16, [5, 9, 2, 7, 4, 6]),
        _prefill_case(0, 32, 32, 16, [3, 1]),
    ]
    rng = random.Random("prefill")
    for _ in range(NUM_DRAWN):
        block_size, bucket = rng.choice([16, 32]), rng.choice([32, 64, 128])
        num_tokens, num_computed = rng.randint(1, bucket), rng.randint(0, 150)
        num_blocks = -(-(num_computed + num_tokens) // block_size)
        blocks = rng.sample(range(1, 99), num_blocks)
        cases.append(_prefill_case(num_computed, num_tokens, bucket, block_size, blocks))
    return cases


def _decode_case(
    positions: Sequence[int], tables: Sequence[Sequence[int]], bucket: int, block_size: int
) -> dict[str, Any]:
    max_blocks = max(map(len, tables)) + 1
    return {
        "token_ids": _array(range(11, 11 + len(positions))),
        "positions": _array(positions),
        "block_tables": np.stack([_table(blocks, max_blocks) for blocks in tables]),
        "num_padded_seqs": bucket,
        "block_size": block_size,
    }


def _decode_cases() -> list[dict[str, Any]]:
    cases = [
        _decode_case([5, 31, 16], [[3], [6, 7], [8, 9]], 4, 16),
        *(_decode_case([position], [[4, 9]], 1, 64) for position in range(62, 66)),
    ]
    rng = random.Random("decode")
    for _ in range(NUM_DRAWN):
        block_size, bucket = rng.choice([16, 32]), rng.choice([2, 4, 8])
        positions = [rng.randint(1, 120) for _ in range(rng.randint(1, bucket))]
        free = rng.sample(range(1, 99), 8 * len(positions))
        tables = [[free.pop() for _ in range(p // block_size + 1)] for p in positions]
        cases.append(_decode_case(positions, tables, bucket, block_size))
    return cases


def _prefill_rules() -> list[ValueRule]:
    """Rules, each called with the five arguments of pad_prefill and the result."""

    def right_slots(tokens: Any, table: Any, before: int, _: int, size: int, got: Any) -> bool:
        positions = np.arange(before, before + len(tokens))
        expected = compute_slots(table[positions // size], positions, size)
        return bool((got.slot_mapping[: len(tokens)] == expected).all())

    return [
        ValueRule(
            "padding leaves no trace",
            "a padding token has slot -1",
            lambda tokens, *rest: (rest[-1].slot_mapping[len(tokens) :] == PADDING_SLOT).all(),
        ),
        ValueRule("slots", "a token's slot follows from its block and its position", right_slots),
        ValueRule(
            "positions",
            "the chunk goes on where the cache ends, at num_computed_tokens",
            lambda tokens, _, before, *rest: (
                list(rest[-1].positions[: len(tokens)]) == list(range(before, before + len(tokens)))
            ),
        ),
        ValueRule(
            "no new positions",
            "padding repeats the last real position",
            lambda tokens, *rest: (
                rest[-1].positions[len(tokens) :] == rest[-1].positions[len(tokens) - 1]
            ).all(),
        ),
        ValueRule(
            "the real length",
            "num_tokens says how many tokens are real, as the last of them is sampled after",
            lambda tokens, *rest: list(rest[-1].num_tokens) == [len(tokens)],
        ),
        ValueRule(
            "unused blocks",
            "vLLM's 0 for an unused block becomes the kernels' -1",
            lambda _, table, *rest: (
                list(rest[-1].block_table) == [block or UNUSED_BLOCK for block in table]
            ),
        ),
    ]


def _decode_rules() -> list[ValueRule]:
    """Rules, each called with the five arguments of pad_decode and the result."""

    def right_slots(_: Any, positions: Any, tables: Any, __: int, size: int, got: Any) -> bool:
        blocks = tables[np.arange(len(positions)), positions // size]
        expected = compute_slots(blocks, positions, size)
        return bool((got.slot_mapping[: len(positions)] == expected).all())

    return [
        ValueRule(
            "padding leaves no trace",
            "a row of padding has slot -1",
            lambda tokens, *rest: (rest[-1].slot_mapping[len(tokens) :] == PADDING_SLOT).all(),
        ),
        ValueRule("slots", "a token's slot follows from its block and its position", right_slots),
        ValueRule(
            "positions",
            "the token stands at the position given, and as many are in the cache before it",
            lambda tokens, positions, *rest: (
                list(rest[-1].positions[: len(tokens)]) == list(positions)
                and list(rest[-1].context_lens[: len(tokens)]) == list(positions)
            ),
        ),
        ValueRule(
            "padding has no context",
            "a row of padding stands at position 0 with nothing before it",
            lambda tokens, *rest: (
                not rest[-1].positions[len(tokens) :].any()
                and not rest[-1].context_lens[len(tokens) :].any()
            ),
        ),
        ValueRule(
            "padding names real blocks",
            "the block table of a row of padding is a copy of the first row's",
            lambda tokens, *rest: (
                rest[-1].block_tables[len(tokens) :] == rest[-1].block_tables[0]
            ).all(),
        ),
    ]
