"""A sweep as an experiment: one figure over the settings that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ..reports.chart import BAR, LINE, Chart, Series
from ..reports.experiment_page import Experiment
from ..reports.tables import format_cell

if TYPE_CHECKING:
    from pandas import DataFrame

    from .sweeps import SweepResult

FIGURES = (
    "ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "output_tokens_per_second", "goodput",
    "running_mean", "padding_share", "num_shapes", "num_preemptions", "num_finished",
)  # fmt: skip
"""Figures shown in the table, as far as the cells have them."""


def show_sweep(
    result: SweepResult, settings: Sequence[str], figure: str = "output_tokens_per_second"
) -> Experiment:
    """Return a plot and a short table of a sweep.

    Args:
        result: with at least one finished cell.
        settings: names that were swept; the first is the x axis, the others make the lines.
        figure: column of the result's table to plot.

    Raises:
        ValueError: there is no such figure, or no finished cell.
    """
    table = result.table
    if table.empty:
        raise ValueError("show_sweep: no cell has finished; see failures")
    names = ["workload", *settings]
    figures = [name for name in table.columns if name not in names]
    if figure not in figures:
        nearest = get_close_matches(figure, figures, n=1) or figures
        raise ValueError(
            f"figure: {figure!r} is not among the figures; give one, such as {nearest[0]!r}"
        )
    best, worst = table.loc[table[figure].idxmax()], table.loc[table[figure].idxmin()]
    chart = _chart(table, settings, figure)
    notes = _notes(table, settings)
    lines = "; ".join(
        f"{s.name}: " + ", ".join(f"{x}: {format_cell(y)}" for x, y in zip(s.x, s.y, strict=True))
        for s in chart.series
    )
    shown = [*names, *dict.fromkeys([figure, *(f for f in FIGURES if f in figures)])]
    return Experiment(
        question=f"How does {figure} depend on {', '.join(settings)}?",
        answer=(
            f"It is largest, {format_cell(best[figure])}, with {_words(best, settings)}, and "
            f"smallest, {format_cell(worst[figure])}, with {_words(worst, settings)}."
        ),
        table=table[shown],
        chart=chart,
        alt_text=f"{figure} by {settings[0]}. {lines}.",
        notes=notes,
        failed=bool(notes),
    )


def _notes(table: DataFrame, settings: Sequence[str]) -> tuple[str, ...]:
    """Return a warning about cells that stalled or had all requests refused."""
    notes = []
    if "stalled" in table and (stalled := int(table["stalled"].sum())):
        notes.append(
            f"{stalled} of {len(table)} cells stalled: the scheduler stopped scheduling although "
            f"requests were left. The first: {_words(table[table['stalled']].iloc[0], settings)}."
        )
    if "num_refused" in table and "num_requests" in table:
        refused = table[table["num_refused"] == table["num_requests"]]
        if len(refused):
            notes.append(
                f"{len(refused)} of {len(table)} cells had all requests refused; `simulate` says "
                f"why. The first: {_words(refused.iloc[0], settings)}."
            )
    return tuple(notes)


def _chart(table: DataFrame, settings: Sequence[str], figure: str) -> Chart:
    x_name, *others = settings
    if len(set(table["workload"])) > 1:
        others = ["workload", *others]
    numeric = all(isinstance(x, (int, float)) for x in table[x_name]) and len(table) > 1
    groups: list[tuple[Any, DataFrame]] = [((), table)]
    if others:
        groups = list(table.groupby(others, sort=False, dropna=False))
    series = []
    for values, rows in groups:
        name = ", ".join(f"{_short(n)}={v}" for n, v in zip(others, values, strict=True))
        if numeric:
            rows = rows.sort_values(x_name)  # noqa: PLW2901  (the same rows, in order)
        x = tuple(rows[x_name]) if numeric else tuple(str(v) for v in rows[x_name])
        y = tuple(rows[figure])
        labels = () if numeric else tuple(format_cell(v) for v in y)
        series.append(Series(name or figure, x, y, labels))
    return Chart(
        title=f"{figure} by {_short(x_name)}",
        x_title=_short(x_name),
        y_title=figure,
        series=tuple(series),
        kind=LINE if numeric else BAR,
        x_values=tuple(sorted(set(table[x_name]))) if numeric else (),
    )


def _words(row: Any, settings: Sequence[str]) -> str:
    return ", ".join(f"{_short(name)} = {row[name]}" for name in settings)


def _short(name: str) -> str:
    return name.rpartition(".")[2]
