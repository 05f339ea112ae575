"""Prefill pacing: what bounding the wait of decodes costs the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..reports.chart import Chart, Series
from ..reports.experiment_page import Experiment
from .cell_runs import get_setting, run_cells

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..trace.metrics import SLO
    from ..workloads.workload import Workload

CONSECUTIVE_PREFILLS = (1, 2, 4, 8)
"""Limits of max_consecutive_prefills to try by default, besides none."""

STALL_BUCKETS = (1, 2, 4)
"""Limits of max_decode_stall_tokens, in multiples of the largest prefill bucket."""

NO_LIMIT = "no limit"


def pacing(
    workload: Workload,
    *,
    max_consecutive_prefills: Sequence[int] = CONSECUTIVE_PREFILLS,
    max_decode_stall_tokens: Sequence[int] | None = None,
    slo: SLO | None = None,
    results: str | Path | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
    **settings: Any,
) -> Experiment:
    """Bound how long decodes wait for prefills, more and more tightly, in the two ways there are.

    Args:
        workload: who arrives when; pacing shows where prompts queue.
        max_consecutive_prefills: limits of this setting to try, besides none.
        max_decode_stall_tokens: limits of that one; by default STALL_BUCKETS times the largest
            prefill bucket.
        slo: what goodput is measured by.
        results: results file of the sweep; see `sweep`.
        n_jobs: processes; see `sweep`.
        progress: whether to show a bar.
        settings: arguments of `simulate`.

    Raises:
        ValueError: a setting is wrong; it is named.
    """
    if max_decode_stall_tokens is None:
        names = ("max_num_batched_tokens", "max_model_len")
        largest = min(get_setting(name, settings) for name in names)
        max_decode_stall_tokens = [n * largest for n in STALL_BUCKETS]
    limits = {
        "max_consecutive_prefills": sorted(max_consecutive_prefills, reverse=True),
        "max_decode_stall_tokens": sorted(max_decode_stall_tokens, reverse=True),
    }
    if not any(limits.values()):
        raise ValueError("pacing: no limit is given; give max_consecutive_prefills=(1, 2, 4)")
    cells: list[dict[str, Any]] = [{}]
    cells += [{f"neuron_config.{name}": n} for name, values in limits.items() for n in values]
    figures = run_cells(
        cells, workload, results=results, n_jobs=n_jobs, progress=progress, slo=slo, **settings
    )
    table = _pacing_table(figures, limits)
    if slo is not None:
        table["goodput, requests/s"] = list(figures["goodput"])
    free = table.iloc[0]
    series = []
    for name in limits:
        rows = table[table["setting"].isin([NO_LIMIT, name])]
        series.append(
            Series(name, tuple(rows["TTFT p50, s"]), tuple(rows["longest ITL, s"]),
                   tuple(str(limit) for limit in rows["limit"]))
        )  # fmt: skip
    # The first point is in both lines; one label is enough.
    series[1] = series[1]._replace(labels=("", *series[1].labels[1:]))
    lines = "; ".join(
        f"{name}: " + ", ".join(
            f"{row['limit']}: TTFT {row['TTFT p50, s']:.3g} s, ITL {row['longest ITL, s']:.3g} s"
            for _, row in table[table["setting"] == name].iterrows()
        )
        for name in limits
    )  # fmt: skip
    return Experiment(
        question="What do steadier decodes cost the first token?",
        answer=_pacing_answer(table),
        table=table,
        chart=Chart(
            title="The price of steadier decodes (further down and left is better)",
            x_title="time to first token, median, seconds",
            y_title="longest inter-token latency, seconds",
            series=tuple(series),
        ),
        alt_text=(
            f"Longest inter-token latency by median time to first token, one line a setting. No "
            f"limit: TTFT {free['TTFT p50, s']:.3g} s, ITL {free['longest ITL, s']:.3g} s; {lines}."
        ),
    )


def _pacing_answer(table: DataFrame) -> str:
    free, limited = table.iloc[0], table.iloc[1:]
    tightest = limited.loc[limited["longest ITL, s"].idxmin()]
    if tightest["longest ITL, s"] >= free["longest ITL, s"]:
        return (
            "Nothing, for no limit changes anything: hardly ever do so many prefills follow each "
            "other here while decodes wait. More seats, smaller chunks or burstier arrivals would."
        )
    return (
        f"Without a limit the longest wait for a next token is {free['longest ITL, s']:.3g} s and "
        f"the median first token comes after {free['TTFT p50, s']:.3g} s; with "
        f"{tightest['setting']} = {tightest['limit']:,} they are "
        f"{tightest['longest ITL, s']:.3g} s and {tightest['TTFT p50, s']:.3g} s."
    )


def _pacing_table(figures: DataFrame, limits: Mapping[str, Sequence[int]]) -> DataFrame:
    from pandas import DataFrame

    named = [(NO_LIMIT, NO_LIMIT), *((name, n) for name in limits for n in limits[name])]
    rows = []
    for (setting, limit), (_, f) in zip(named, figures.iterrows(), strict=True):
        rows.append(
            {
                "setting": setting,
                "limit": limit,
                "TTFT p50, s": f["ttft_p50"],
                "TTFT p99, s": f["ttft_p99"],
                "ITL p50, s": f["itl_p50"],
                "ITL p99, s": f["itl_p99"],
                "longest ITL, s": f["itl_max"],
                "stalled gaps": f["stalled_share"],
                "output tokens/s": f["output_tokens_per_second"],
            }
        )
    return DataFrame(rows)
