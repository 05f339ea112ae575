"""The ladder that wastes least: bucket sizes fitted to the lengths that really come.

Powers of two suit nobody's prompts in particular. Given a sample of chunk lengths and the number
of graphs one is willing to compile, the best ladder can be computed: sort the lengths, cut them
into groups, and give each group the bucket of its longest member. Which cuts are best is found
exactly, by dynamic programming over the histogram of lengths.

Source: grouping as in D. E. Knuth, "Optimum binary search trees" (1971); the halving of rows is the
usual divide and conquer for cost tables with the Monge property (F. F. Yao, 1980).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray: TypeAlias = NDArray[np.int64]
Cost: TypeAlias = Callable[[int], float]
"""Time (in any unit) of one step whose tensor has so many tokens."""

MAX_SIZES_UNORDERED = 16_384
"""Most candidate sizes if the cost falls somewhere: all pairs are then tried, O(n^2 count)."""


def chunk_lengths(prompt_lengths: ArrayLike, max_num_batched_tokens: int) -> IntArray:
    """Return the lengths of the chunks into which vLLM cuts the prompts, in prompt order.

    Args:
        prompt_lengths: tokens to compute of each prompt, shape [n]; 0 gives no chunk.
        max_num_batched_tokens: longest chunk, in tokens.

    Returns:
        int64, shape [sum of ceil(length / max_num_batched_tokens)].
    """
    prompts = _check_lengths("prompt_lengths", prompt_lengths, smallest=0)
    if max_num_batched_tokens < 1:
        raise ValueError(f"max_num_batched_tokens: {max_num_batched_tokens} must be at least 1")
    num_chunks = -(-prompts // max_num_batched_tokens)
    chunks = np.full(num_chunks.sum(), max_num_batched_tokens, dtype=np.int64)
    last_chunk = num_chunks.cumsum()[num_chunks > 0] - 1
    prompts = prompts[num_chunks > 0]
    chunks[last_chunk] = (prompts - 1) % max_num_batched_tokens + 1
    return chunks


def pad_lengths(lengths: ArrayLike, ladder: Sequence[int]) -> IntArray:
    """Return the bucket of each length; `get_bucket_for_count` for arrays.

    Raises:
        ValueError: a length is below 1 or above the last bucket.
    """
    array = _check_lengths("lengths", lengths)
    buckets = np.asarray(ladder, dtype=np.int64)
    if array.size and array.max() > buckets[-1]:
        raise ValueError(
            f"lengths: {array.max()} does not fit the largest bucket {buckets[-1]}; cut prompts "
            f"with chunk_lengths() or append {array.max()} to the ladder"
        )
    return buckets[np.searchsorted(buckets, array)]


def padding_waste(lengths: ArrayLike, ladder: Sequence[int]) -> float:
    """Return the share of the padded tokens that is padding, from 0 to 1."""
    array = _check_lengths("lengths", lengths)
    padded = int(pad_lengths(array, ladder).sum())
    return 1 - int(array.sum()) / padded if padded else 0.0


def optimal_buckets(
    lengths: ArrayLike,
    count: int,
    *,
    max_num_batched_tokens: int,
    granule: int = 1,
    fixed: Iterable[int] = (),
    cost: Cost | None = None,
) -> list[int]:
    """Return the ladder of at most `count` buckets that costs least for a sample of lengths.

    Exact. Least padded tokens, or least time under `cost`; at equal cost, fewest buckets. With n
    candidate sizes it takes O(count n log n) while a larger bucket never costs less (then the best
    sizes are among the lengths themselves), and O(count n^2), over every multiple of `granule`,
    for a cost that falls somewhere.

    Args:
        lengths: sample of chunk lengths in tokens, shape [n], each at most
            `max_num_batched_tokens`; see `chunk_lengths`.
        count: most buckets, hence graphs to compile.
        max_num_batched_tokens: the last bucket; `min(max_num_batched_tokens, max_model_len)`.
        granule: every bucket is a multiple of it, except the last and the fixed ones.
        fixed: buckets that must be in the ladder.
        cost: time of one step in a bucket of so many tokens; None counts tokens.

    Raises:
        ValueError: names the argument, the value found, the rule and the fix.
    """
    array = _check_lengths("lengths", lengths)
    last = max_num_batched_tokens
    members = _check_members(fixed, last, count)
    if granule < 1:
        raise ValueError(f"granule: {granule} must be at least 1")
    if not array.size or array.max() > last:
        found = f"the longest is {array.max()}" if array.size else "there are none"
        raise ValueError(
            f"lengths: {found}; a ladder is fitted to lengths from 1 to max_num_batched_tokens = "
            f"{last}, which chunk_lengths() makes from prompts"
        )
    histogram = np.bincount(array, minlength=last + 1)
    seen = np.flatnonzero(histogram)
    aligned = np.minimum(-(-seen // granule) * granule, last)
    if cost is None:
        sizes = np.union1d(aligned, members)
        costs = sizes
    else:
        sizes = np.union1d(np.arange(granule, last, granule), members)
        costs = _evaluate(cost, sizes)
    ascending = bool(np.all(np.diff(costs) >= 0))
    if ascending and cost is not None:
        useful = np.isin(sizes, np.union1d(aligned, members))
        sizes, costs = sizes[useful], costs[useful]
    elif not ascending and len(sizes) > MAX_SIZES_UNORDERED:
        raise ValueError(
            f"cost: it falls somewhere, and {len(sizes)} sizes are too many to try all pairs (at "
            f"most {MAX_SIZES_UNORDERED}); raise granule"
        )
    weights: IntArray = np.zeros(len(sizes), dtype=np.int64)
    np.add.at(weights, np.searchsorted(sizes, seen), histogram[seen])
    chosen = _cheapest_cuts(weights, costs, np.isin(sizes, members), count, halving=ascending)
    return sizes[chosen].tolist()


def _cheapest_cuts(
    weights: IntArray, costs: NDArray, is_fixed: NDArray[np.bool_], count: int, *, halving: bool
) -> list[int]:
    """Return the ascending indices of the cheapest ladder; the last candidate is in it.

    A bucket j that follows bucket i holds the lengths between them. With 1-based candidates and 0
    for "no bucket before", it costs (covered[j] - covered[i]) * costs[j].

    Args:
        weights: lengths between candidate i - 1 and candidate i, shape [n].
        costs: cost of one step at each candidate, shape [n].
        is_fixed: candidates that must be chosen, shape [n].
        count: most candidates to choose.
        halving: the costs ascend, so the rows may be searched by divide and conquer.
    """
    n = len(weights)
    zero: IntArray = np.zeros(1, dtype=np.int64)
    covered = np.concatenate((zero, np.cumsum(weights)))
    num_fixed = np.concatenate((zero, np.cumsum(is_fixed)))
    num_fixed_before = np.concatenate((zero, num_fixed[:-1]))
    cost = np.concatenate((costs[:1], costs))
    # Each fixed size passed over costs more than the dearest ladder. A penalty, unlike infinity,
    # keeps every row comparable, which the search by halves relies on.
    penalty = covered[-1] * costs.max() + 1
    own = covered * cost + penalty * num_fixed_before

    best, totals = own, [own[n]]
    splits: list[IntArray] = []
    search = _search_by_halves if halving else _search_all
    for num_buckets in range(2, min(count, n) + 1):
        split, least = search(best - penalty * num_fixed, covered, cost, num_buckets)
        best = own + least
        totals.append(best[n])
        splits.append(split)

    chosen = [n]
    for split in reversed(splits[: int(np.argmin(totals))]):
        chosen.append(int(split[chosen[-1]]))
    return [index - 1 for index in reversed(chosen)]


def _search_all(
    offset: NDArray, covered: IntArray, cost: NDArray, first: int
) -> tuple[IntArray, NDArray]:
    """Return for each row j >= `first` the i < j with the least offset[i] - covered[i] * cost[j].

    Args:
        offset: cost of the best ladder that ends at i, shape [n + 1].
        covered: lengths up to i, shape [n + 1].
        cost: cost of a step at j, shape [n + 1].
        first: first row; its only column is first - 1.

    Returns:
        (argument, minimum), shape [n + 1] each; rows before `first` are 0.
    """
    split: IntArray = np.zeros(len(offset), dtype=np.int64)
    least = np.zeros_like(offset)
    for j in range(first, len(offset)):
        values = offset[first - 1 : j] - covered[first - 1 : j] * cost[j]
        index = int(values.argmin())
        split[j], least[j] = first - 1 + index, values[index]
    return split, least


def _search_by_halves(
    offset: NDArray, covered: IntArray, cost: NDArray, first: int
) -> tuple[IntArray, NDArray]:
    """Do what `_search_all` does, for ascending costs, in O(n log n).

    With ascending costs the best i never moves left as j grows. So the middle row, searched in
    full, halves the columns that the other rows need; all rows of one level are searched at once.
    """
    n = len(offset) - 1
    split: IntArray = np.zeros(n + 1, dtype=np.int64)
    least = np.zeros_like(offset)
    split[first - 1] = first - 1
    step = 1 << (n - first + 1).bit_length()
    while step := step // 2:
        rows: IntArray = np.arange(first - 1 + step, n + 1, 2 * step)
        low = split[rows - step]
        high = np.where(rows + step <= n, split[np.minimum(rows + step, n)], n - 1)
        # Rounding in float costs may shift a tie by one column.
        high = np.maximum(np.minimum(high, rows - 1), low)
        widths = high - low + 1
        starts = np.cumsum(widths) - widths
        columns = np.arange(widths.sum()) - np.repeat(starts - low, widths)
        values = offset[columns] - covered[columns] * np.repeat(cost[rows], widths)
        least[rows] = np.minimum.reduceat(values, starts)
        hits = np.flatnonzero(values == np.repeat(least[rows], widths))
        split[rows] = columns[hits[np.searchsorted(hits, starts)]]
    return split, least


def _check_lengths(name: str, lengths: ArrayLike, smallest: int = 1) -> IntArray:
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise ValueError(f"{name}: shape {array.shape} must be one row of token counts")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: dtype {array.dtype} must be an integer type; token counts")
    if array.size and array.min() < smallest:
        raise ValueError(f"{name}: {array.min()} must be at least {smallest}; drop such rows")
    return array.astype(np.int64, copy=False)


def _check_members(fixed: Iterable[int], last: int, count: int) -> list[int]:
    members = sorted({*fixed, last})
    if members[0] < 1 or members[-1] > last:
        wrong = members[0] if members[0] < 1 else members[-1]
        raise ValueError(
            f"fixed: {wrong} must lie between 1 and max_num_batched_tokens = {last}; remove it"
        )
    if count < len(members):
        raise ValueError(
            f"count: {count} must be at least {len(members)}, for the fixed members and the last "
            f"bucket {members}; raise it or fix fewer"
        )
    return members


def _evaluate(cost: Cost, sizes: IntArray) -> NDArray[np.float64]:
    costs = np.array([cost(size) for size in sizes.tolist()], dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if wrong.size:
        raise ValueError(
            f"cost: cost({sizes[wrong[0]]}) = {costs[wrong[0]]} must be a finite time of at least 0"
        )
    return costs
