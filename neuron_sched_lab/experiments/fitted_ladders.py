"""Ladders fitted to a workload against the usual ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reports.chart import BAR, Chart, Series
from ..reports.experiment_page import Experiment

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..scheduler.ladders import IntArray
    from ..workloads.workload import Workload

USUAL, FITTED = "padding, usual", "padding, fitted to the first half"


def ladders(
    workload: Workload,
    *,
    count: int | None = None,
    max_num_batched_tokens: int = 8192,
    granule: int = 16,
    block_size: int = 128,
) -> Experiment:
    """Fit ladders to the first half of a workload's prompts; count padding in the second half.

    Nothing is simulated: the ladder of prefill buckets alone decides how much is padded.

    Args:
        workload: its prompts, in order of arrival, are the sample.
        count: also fit a ladder of at most so many buckets.
        max_num_batched_tokens: longest chunk, and the last bucket.
        granule: fitted buckets are multiples of it.
        block_size: smallest bucket of the usual ladders.

    Raises:
        ValueError: fewer than two chunks, or a setting is wrong; it is named.
    """
    from ..settings.arguments import check_ints
    from ..workloads.workload import check_workload

    check_workload(workload)
    check_ints(
        max_num_batched_tokens=max_num_batched_tokens, granule=granule, block_size=block_size
    )
    if count is not None:
        check_ints(count=count)

    from pandas import DataFrame

    from ..scheduler.usual_ladders import usual_ladders

    chunks = _get_chunks(workload, max_num_batched_tokens)
    usual = usual_ladders(max_num_batched_tokens, block_size)
    options: dict[str, Any] = {"max_num_batched_tokens": max_num_batched_tokens, "granule": granule}
    rows = [_score(name, ladder, len(ladder), chunks, options) for name, ladder in usual.items()]
    if count is not None:
        rows.append(_score(f"none, {count} buckets", None, count, chunks, options))
    table = DataFrame(rows)
    powers = table.iloc[0]
    chart = _chart(table[table[USUAL].notna()])
    bars = "; ".join(
        f"{name}: usual {a}, fitted {b}"
        for name, a, b in zip(chart.series[0].x, *(s.labels for s in chart.series), strict=True)
    )
    return Experiment(
        question="How much padding does a ladder save that is fitted to the prompts seen so far?",
        answer=(
            f"With {powers['buckets']} buckets fitted to the first half, {powers[FITTED]:.1%} of "
            f"the second half's tokens are padding; with powers of two, as many buckets, "
            f"{powers[USUAL]:.1%}."
        ),
        table=table,
        chart=chart,
        alt_text=f"Bars: share of padding in the second half of the workload. {bars}.",
    )


def fit_ladder(
    workload: Workload, count: int, *, max_num_batched_tokens: int = 8192, granule: int = 16
) -> tuple[list[int], float]:
    """Return the best ladder for all of a workload's prompts, and its share of padding.

    Raises:
        ValueError: see `optimal_buckets`.
    """
    from ..scheduler.ladders import optimal_buckets, padding_waste

    chunks = _get_chunks(workload, max_num_batched_tokens)
    ladder = optimal_buckets(
        chunks, count, max_num_batched_tokens=max_num_batched_tokens, granule=granule
    )
    return ladder, padding_waste(chunks, ladder)


def _get_chunks(workload: Workload, max_num_batched_tokens: int) -> IntArray:
    from ..scheduler.ladders import chunk_lengths

    prompts = np.array([r.num_prompt_tokens for r in workload], dtype=np.int64)
    return chunk_lengths(prompts, max_num_batched_tokens)


def _score(
    name: str, ladder: list[int] | None, count: int, chunks: IntArray, options: dict[str, Any]
) -> dict[str, Any]:
    """Return a row: a usual ladder, and one of as many buckets that is fitted to the past."""
    from ..scheduler.ladders import optimal_buckets, padding_waste
    from ..scheduler.usual_ladders import evaluate_held_out

    held_out = evaluate_held_out(chunks, partial(optimal_buckets, count=count, **options))
    future = chunks[len(chunks) // 2 :]
    return {
        "usual ladder": name,
        "buckets": count,
        USUAL: None if ladder is None else padding_waste(future, ladder),
        FITTED: held_out.test_waste,
        "padding, best possible": held_out.best_waste,
        "fitted ladder": held_out.ladder,
    }


def _chart(table: DataFrame) -> Chart:
    names = tuple(f"{r['usual ladder']}, {r['buckets']}" for _, r in table.iterrows())
    return Chart(
        title="Padding in the second half of the workload (less is better)",
        x_title="usual ladder, and its number of buckets",
        y_title="share of the tokens that is padding",
        series=tuple(
            Series(title, names, tuple(table[column]), tuple(f"{v:.1%}" for v in table[column]))
            for title, column in (("usual", USUAL), ("fitted, as many buckets", FITTED))
        ),
        kind=BAR,
        percent=True,
    )
