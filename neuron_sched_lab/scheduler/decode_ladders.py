"""Decode ladders in two dimensions: how many sequences, and how much context they have.

A decode graph is compiled for a batch size and, on Neuron, for a context length. All pairs of the
two ladders are compiled, so the number of graphs is their product. Which pair of ladders costs
least is a two-dimensional cutting problem without a known fast exact answer. With one ladder fixed,
the other can be computed exactly, as in `ladders.py`; taking turns finds a good pair, and a bound
says how far from the best it can be at most.

Source: `decode_context_length_buckets` of AWS's plugin: multiples of 128, the last one
max_model_len.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Grid: TypeAlias = NDArray[np.float64]
GridCost: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], ArrayLike]
"""Time of one decode step: cost(batch [n, 1], context [1, m]) -> [n, m]; it never falls."""


@dataclass(frozen=True)
class DecodeLadders:
    """A pair of decode ladders and how good it is.

    Attributes:
        num_seqs_buckets: batch sizes, ascending, the last is max_num_seqs.
        context_buckets: context lengths in tokens, ascending, the last is max_model_len.
        cost: summed cost of the sampled steps, padded to the pair.
        unpadded_cost: the same with every step exactly fitted.
        bound: no pair of ladders with as many graphs costs less than this.
    """

    num_seqs_buckets: tuple[int, ...]
    context_buckets: tuple[int, ...]
    cost: float
    unpadded_cost: float
    bound: float

    @property
    def num_graphs(self) -> int:
        """Graphs to compile: every pair."""
        return len(self.num_seqs_buckets) * len(self.context_buckets)

    @property
    def gap(self) -> float:
        """This pair costs at most this share more than the best one: 0.05 is 5 % more."""
        return self.cost / self.bound - 1 if self.bound else 0.0


def kv_tokens_read(batch: NDArray[np.int64], context: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens of KV cache that a padded decode step reads: the default cost."""
    return batch * context


def optimize_decode_ladders(
    batches: ArrayLike,
    contexts: ArrayLike,
    num_graphs: int,
    *,
    max_num_seqs: int,
    max_model_len: int,
    granule: int = 128,
    cost: GridCost = kv_tokens_read,
) -> DecodeLadders:
    """Return a good pair of decode ladders with at most `num_graphs` graphs in all.

    Args:
        batches: sequences of each sampled decode step, shape [n].
        contexts: longest context of each step in tokens, the new token included, shape [n].
        num_graphs: most graphs: len(batch ladder) * len(context ladder).
        max_num_seqs: the last batch size.
        max_model_len: the last context length.
        granule: context buckets are multiples of it, except the last.
        cost: time of a step by batch and context, any unit.

    Raises:
        ValueError: names the argument, the value found, the rule and the fix.
    """
    if num_graphs < 1:
        raise ValueError(f"num_graphs: {num_graphs} must be at least 1")
    steps = _Steps.count(batches, contexts, max_num_seqs, max_model_len, granule, cost)
    splits = [(n, num_graphs // n) for n in range(1, num_graphs + 1)]
    batch_ladder, context_ladder, total = min(
        (_take_turns(steps, *split) for split in splits), key=lambda pair: pair[2]
    )
    return DecodeLadders(
        num_seqs_buckets=tuple(steps.batches[batch_ladder].tolist()),
        context_buckets=tuple(steps.contexts[context_ladder].tolist()),
        cost=total,
        unpadded_cost=steps.unpadded_cost,
        bound=_bound(steps, splits),
    )


@dataclass(frozen=True)
class _Steps:
    """The sampled steps as a table.

    Attributes:
        batches: batch sizes seen and the last one, shape [n].
        contexts: context lengths seen, aligned, and the last one, shape [m].
        counts: steps of each batch size and context, shape [n, m].
        cost: cost of one step of each batch size and context, shape [n, m].
    """

    batches: NDArray[np.int64]
    contexts: NDArray[np.int64]
    counts: Grid
    cost: Grid

    @classmethod
    def count(
        cls,
        batches: ArrayLike,
        contexts: ArrayLike,
        max_num_seqs: int,
        max_model_len: int,
        granule: int,
        cost: GridCost,
    ) -> _Steps:
        batch = _check_sample("batches", batches, max_num_seqs, "max_num_seqs")
        context = _check_sample("contexts", contexts, max_model_len, "max_model_len")
        if len(batch) != len(context):
            raise ValueError(
                f"contexts: {len(context)} of them for {len(batch)} batches; one for each step"
            )
        aligned = np.minimum(-(-context // granule) * granule, max_model_len)
        rows = np.union1d(batch, [max_num_seqs])
        columns = np.union1d(aligned, [max_model_len])
        counts = np.zeros((len(rows), len(columns)))
        np.add.at(counts, (np.searchsorted(rows, batch), np.searchsorted(columns, aligned)), 1)
        table = np.asarray(cost(rows[:, None], columns[None, :]), dtype=np.float64)
        table = np.broadcast_to(table, counts.shape)
        if not np.isfinite(table).all() or (table < 0).any():
            raise ValueError("cost: every value must be a finite time of at least 0")
        if (np.diff(table, axis=0) < 0).any() or (np.diff(table, axis=1) < 0).any():
            raise ValueError(
                "cost: it falls for a larger batch or context; a padded step cannot be cheaper"
            )
        return cls(rows, columns, counts, table)

    @property
    def unpadded_cost(self) -> float:
        return float((self.counts * self.cost).sum())

    def transpose(self) -> _Steps:
        return _Steps(self.contexts, self.batches, self.counts.T, self.cost.T)


def _take_turns(
    steps: _Steps, num_batches: int, num_contexts: int
) -> tuple[list[int], list[int], float]:
    """Fit one ladder to the other in turn until that no longer pays.

    Returns:
        (indices of the batch ladder, indices of the context ladder, cost).
    """
    turned = steps.transpose()
    # To begin with, contexts are fitted as if no batch were padded.
    contexts, _ = _fit(turned, range(len(steps.batches)), num_contexts)[-1]
    total = np.inf
    while True:
        batches, _ = _fit(steps, contexts, num_batches)[-1]
        contexts, cost = _fit(turned, batches, num_contexts)[-1]
        if cost >= total:
            return batches, contexts, cost
        total = cost


def _fit(steps: _Steps, columns: Sequence[int], count: int) -> list[tuple[list[int], float]]:
    """Return the cheapest ladders of 1, 2, ... `count` rows for a given ladder of columns.

    Exact: O(n^2 count) for n rows.
    """
    # Steps of each row, by the column that they are padded to: shape [n, columns].
    edges = [0, *(column + 1 for column in columns[:-1])]
    padded = np.add.reduceat(steps.counts, edges, axis=1)
    # spent[i, j]: all steps of row i, each run in the shape of row j.
    spent = padded @ steps.cost[:, columns].T
    covered = np.concatenate((np.zeros((1, spent.shape[1])), np.cumsum(spent, axis=0)))
    # run[i, j]: rows i to j, run in the shape of row j.
    run = covered.diagonal(-1)[None, :] - covered[:-1]
    run[np.tril_indices_from(run, -1)] = np.inf
    return _cheapest_cuts(run, count)


def _cheapest_cuts(run: Grid, count: int) -> list[tuple[list[int], float]]:
    """Return the cheapest ways to cut n rows into 1, 2, ... `count` runs.

    Args:
        run: cost of rows i to j as one run, shape [n, n]; infinite below the diagonal.
        count: most runs; n rows make at most n.

    Returns:
        For each number of runs (the last row of each run, cost).
    """
    n = len(run)
    best = run[0]
    splits: list[NDArray[np.int64]] = []
    cuts = [([n - 1], float(best[-1]))]
    for _ in range(2, min(count, n) + 1):
        table = np.concatenate(([np.inf], best[:-1]))[:, None] + run
        splits.append(table.argmin(axis=0))
        best = table.min(axis=0)
        ladder = [n - 1]
        for split in reversed(splits):
            ladder.append(int(split[ladder[-1]]) - 1)
        cuts.append((ladder[::-1], float(best[-1])))
    return cuts


def _bound(steps: _Steps, splits: list[tuple[int, int]]) -> float:
    """Return a cost that no pair of ladders of these sizes goes below.

    Padding one dimension alone cannot cost more than padding both. Where one more token of context
    costs no less in a larger batch (as in batch * context), the two paddings even add up.
    """
    batch_only = _fit(steps, range(len(steps.contexts)), splits[-1][0])
    context_only = _fit(steps.transpose(), range(len(steps.batches)), splits[0][1])
    mixed = np.diff(np.diff(steps.cost, axis=0), axis=1)
    adds_up = bool((mixed >= 0).all())
    bounds = []
    for num_batches, num_contexts in splits:
        by_batch = batch_only[min(num_batches, len(batch_only)) - 1][1]
        by_context = context_only[min(num_contexts, len(context_only)) - 1][1]
        together = by_batch + by_context - steps.unpadded_cost
        bounds.append(together if adds_up else max(by_batch, by_context))
    return min(bounds)


def _check_sample(name: str, values: ArrayLike, largest: int, limit: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{name}: shape {array.shape} of {array.dtype} must be a row of integers, one a step"
        )
    if array.min() < 1 or array.max() > largest:
        wrong = array.min() if array.min() < 1 else array.max()
        raise ValueError(f"{name}: {wrong} must lie between 1 and {limit} = {largest}")
    return array.astype(np.int64, copy=False)
