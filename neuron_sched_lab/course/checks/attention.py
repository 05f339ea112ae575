"""Checks of attention in NumPy: what a learner computes piece by piece, against one softmax.

    check_merge(my_merge)
    check_attention(my_attention)
    check_gather(my_gather)
    check_combine(my_combine)

A state is (largest score [rows], total [rows], out [rows, head_dim]) of the keys seen so far.
The functions here that have no `check` in their names are right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .guard import FINDINGS, code_files, cpu_limit, explain_error
from .result import NOT_RIGHT, SOLVED, CheckResult, require

Array: TypeAlias = NDArray[Any]
State: TypeAlias = tuple[Array, Array, Array]

MASKED = -1.0e30
"""Added to a score that must not be seen: finite, since inf - inf is NaN."""

TOLERANCE = 1e-5
"""Largest error, relative to the largest number of the result."""

ROWS, HEAD_DIM = 4, 8


def new_state(rows: int, head_dim: int) -> State:
    """Return the state before any key."""
    return np.full(rows, MASKED), np.zeros(rows), np.zeros((rows, head_dim))


def merge(state: State, scores: Array, values: Array) -> State:
    """Add a piece of keys, scores [rows, n] and values [n, head_dim], to a state."""
    largest, total, out = state
    new_largest = np.maximum(largest, scores.max(axis=1))
    rescale = np.exp(largest - new_largest)
    weights = np.exp(scores - new_largest[:, None])
    return (
        new_largest,
        total * rescale + weights.sum(axis=1),
        out * rescale[:, None] + weights @ values,
    )


def attend(
    q: Array, k: Array, v: Array, mask: Array, segment: int, merge: Callable[..., State] = merge
) -> Array:
    """Attend with q [rows, head_dim], scaled, to k and v [n, head_dim], a segment at a time."""
    state = new_state(len(q), v.shape[1])
    for start in range(0, len(k), segment):
        piece = slice(start, start + segment)
        state = merge(state, q @ k[piece].T + mask[:, piece], v[piece])
    _, total, out = state
    return out / total[:, None]


def gather(cache: Array, block_table: Array, num_tokens: int) -> Array:
    """Return the tokens that a block table names, with 0 behind the first num_tokens.

    Args:
        cache: [num_blocks, block_size, head_dim].
        block_table: [blocks], -1 where unused.
        num_tokens: real ones.
    """
    rows = cache[np.maximum(block_table, 0)].reshape(-1, cache.shape[-1])
    is_real = np.arange(len(rows)) < num_tokens
    return np.where(is_real[:, None], rows, 0.0)


def combine(one: State, other: State) -> State:
    """Return the state of all keys from the states of two parts of them."""
    largest = np.maximum(one[0], other[0])
    first, second = np.exp(one[0] - largest), np.exp(other[0] - largest)
    return (
        largest,
        one[1] * first + other[1] * second,
        one[2] * first[:, None] + other[2] * second[:, None],
    )


class _Case(NamedTuple):
    """What to call, what must come out, and what it means if it does not.

    Attributes:
        name: the case in a few words.
        call: called with the learner's function.
        expected: the right result.
        rule: name and sentence of the rule that a wrong result breaks.
    """

    name: str
    call: Callable[[Callable[..., Any]], Any]
    expected: Array
    rule: str


def check_merge(yours: Callable[..., Any]) -> CheckResult:
    """Check a function that does what `merge` does.

    Raises:
        NotSolvedError: it is not solved, and NSL_REQUIRE_SOLVED is 1.
    """
    return require(compare_merge(yours))


def check_attention(yours: Callable[..., Any]) -> CheckResult:
    """Check a function that does what `attend` does; see `check_merge`."""
    return require(compare_attention(yours))


def check_gather(yours: Callable[..., Any]) -> CheckResult:
    """Check a function that does what `gather` does; see `check_merge`."""
    return require(compare_gather(yours))


def check_combine(yours: Callable[..., Any]) -> CheckResult:
    """Check a function that does what `combine` does; see `check_merge`."""
    return require(compare_combine(yours))


def compare_merge(yours: Callable[..., Any]) -> CheckResult:
    """Do what `check_merge` does, and never raise; so do the other three."""
    return _compare(yours, [
        _merge_case("one piece", [1.0], "weights (a weight is exp(score - largest score))"),
        _merge_case(
            "a second piece with smaller scores", [2.0, 0.5],
            "accumulate (total and out are sums over all pieces)",
        ),
        _merge_case(
            "a second piece with larger scores", [0.5, 4.0],
            "rescale (a larger score shrinks what was summed so far, total and out, by "
            "exp(old largest - new largest))",
        ),
        _merge_case(
            "three pieces, the largest scores in the second", [1.0, 5.0, 2.0],
            "the largest of all (it never becomes smaller)",
        ),
        _merge_case(
            "scores in the thousands", [1000.0, 3000.0],
            "no overflow (the largest score is subtracted before exp)",
        ),
        _merge_case(
            "a piece that is masked in whole, then another", [MASKED, 1.0],
            "masked keys weigh nothing (exp(masked - largest) is 0 once there is a real score)",
        ),
    ])  # fmt: skip


def compare_attention(yours: Callable[..., Any]) -> CheckResult:  # noqa: D103
    widths: list[int] = []
    cases = [
        _attention_case("8 keys in segments of 4", 8, 4, widths),
        _attention_case("10 keys in segments of 4, the last one short", 10, 4, widths),
        _attention_case("5 keys in a segment of 16", 5, 16, widths),
        _attention_case("40 keys in segments of 8, causal", 40, 8, widths, causal=True),
    ]
    result = _compare(yours, cases)
    if not result.solved:
        return result
    expected = [4, 4, 4, 4, 2, 5, 8, 8, 8, 8, 8]
    if widths != expected:
        return CheckResult(
            NOT_RIGHT,
            f"merge got pieces of {widths} keys, for the four cases {expected}",
            ("rule broken: pieces (merge gets one segment at a time, the last may be shorter)",),
        )
    return result


def compare_gather(yours: Callable[..., Any]) -> CheckResult:  # noqa: D103
    rule = (
        "order (block_table[i] holds the tokens from i * block_size on)",
        "nothing behind the context (a slot behind it may hold NaN, and 0 * NaN is NaN)",
        "unused blocks (-1 names no block, and gives rows of 0)",
    )
    return _compare(yours, [
        _gather_case("two full blocks", [3, 1], 8, rule[0]),
        _gather_case("a last block that is half full", [2, 4, 1], 10, rule[1]),
        _gather_case("unused blocks at the end", [5, 2, -1, -1], 7, rule[2]),
    ])  # fmt: skip


def compare_combine(yours: Callable[..., Any]) -> CheckResult:  # noqa: D103
    return _compare(yours, [
        _combine_case("the same largest score", 1.0, 1.0, "sums (total and out are added)"),
        _combine_case(
            "the larger scores in the second part", 1.0, 4.0,
            "rescale (both parts are brought to the largest score of both)",
        ),
        _combine_case(
            "the larger scores in the first part", 5.0, 0.5,
            "rescale (both parts are brought to the largest score of both)",
        ),
        _combine_case(
            "nothing seen in the first part", None, 1.0,
            "an empty part changes nothing (its largest score is finite, its total 0)",
        ),
    ])  # fmt: skip


def _draw(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _softmax_at_once(scores: Array, values: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ values)


def _draw_pieces(name: str, sizes: Sequence[float]) -> list[tuple[Array, Array]]:
    """Scores [rows, 6] of about each size, and values [6, head_dim]."""
    rng = _draw(name)
    return [(size + rng.random((ROWS, 6)), rng.standard_normal((6, HEAD_DIM))) for size in sizes]


def _join(pieces: Sequence[tuple[Array, Array]]) -> Array:
    scores, values = zip(*pieces, strict=True)
    return _softmax_at_once(np.concatenate(scores, axis=1), np.concatenate(values))


def _merge_case(name: str, sizes: Sequence[float], rule: str) -> _Case:
    pieces = _draw_pieces(name, sizes)

    def call(yours: Callable[..., Any]) -> Array:
        state = new_state(ROWS, HEAD_DIM)
        for scores, values in pieces:
            state = yours(state, scores.copy(), values.copy())
        _, total, out = state
        return np.asarray(out / total[:, None])

    return _Case(name, call, _join(pieces), rule)


def _attention_case(
    name: str, num_keys: int, segment: int, widths: list[int], *, causal: bool = False
) -> _Case:
    rng = _draw(name)
    q = rng.standard_normal((ROWS, HEAD_DIM))
    k, v = rng.standard_normal((2, num_keys, HEAD_DIM))
    # The rows are the last tokens of the keys.
    ahead = np.arange(num_keys)[None] > np.arange(num_keys - ROWS, num_keys)[:, None]
    mask = np.where(ahead & causal, MASKED, 0.0)

    def call(yours: Callable[..., Any]) -> Any:
        def merge_and_note(state: State, scores: Array, values: Array) -> State:
            widths.append(scores.shape[1])
            return merge(state, scores, values)

        return yours(q.copy(), k.copy(), v.copy(), mask.copy(), segment, merge_and_note)

    expected = _softmax_at_once(q @ k.T + mask, v)
    return _Case(name, call, expected, "attention (out = softmax(q k^T + mask) v, over all keys)")


def _gather_case(name: str, blocks: Sequence[int], num_tokens: int, rule: str) -> _Case:
    cache = _draw(name).standard_normal((6, 4, HEAD_DIM))
    table = np.array(blocks, dtype=np.int32)
    is_used = np.zeros(cache.shape[:2], dtype=bool)
    for place, block in enumerate(blocks):
        if block >= 0:
            is_used[block, : max(0, num_tokens - place * 4)] = True
    cache[~is_used] = np.nan
    return _Case(
        name,
        lambda yours: yours(cache.copy(), table.copy(), num_tokens),
        gather(cache, table, num_tokens),
        rule,
    )


def _combine_case(name: str, first: float | None, second: float, rule: str) -> _Case:
    pieces = _draw_pieces(name, [second] if first is None else [first, second])
    for scores, _ in pieces:
        scores[:, 0] = np.ceil(scores.max())  # else two parts hardly ever have the same largest
    states = [merge(new_state(ROWS, HEAD_DIM), *piece) for piece in pieces]
    if first is None:
        states.insert(0, new_state(ROWS, HEAD_DIM))

    def call(yours: Callable[..., Any]) -> Array:
        _, total, out = yours(*states)
        return np.asarray(out / total[:, None])

    return _Case(name, call, _join(pieces), rule)


def _compare(yours: Callable[..., Any], cases: Sequence[_Case]) -> CheckResult:
    for number, case in enumerate(cases, start=1):
        where = f"case {number} ({case.name})"
        try:
            with cpu_limit(), np.errstate(all="ignore"):
                found = np.asarray(case.call(yours), dtype=float)
        except FINDINGS as error:  # whatever a learner's code may raise
            return explain_error(error, code_files(yours), where, ())
        if difference := _find_difference(found, case.expected):
            message = f"{where}: {difference}"
            return CheckResult(NOT_RIGHT, message, (f"rule broken: {case.rule}",))
    return CheckResult(SOLVED, f"{yours.__name__} is right in {len(cases)} cases")


def _find_difference(found: Array, expected: Array) -> str | None:
    if found.shape != expected.shape:
        return f"your result has the shape {found.shape}, it must be {expected.shape}"
    # Asked with ~, so that NaN counts as wrong: every comparison with it is False.
    is_wrong = ~(np.abs(found - expected) <= TOLERANCE * np.abs(expected).max())
    if not is_wrong.any():
        return None
    row, column = np.argwhere(is_wrong)[0]
    return (
        f"row {row}, column {column} is {found[row, column]:.4g} in your result, "
        f"it must be {expected[row, column]:.4g}"
    )
