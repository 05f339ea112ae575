"""A policy of your own against the packaged ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reports.chart import CURVE, Chart, Series
from ..reports.experiment_page import Experiment
from ..reports.metrics_plot import LATENCIES
from .setups import SetupLike, make_setups
from .trial import Trial

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..trace.metrics import SLO
    from ..workloads.workload import Workload

MAX_POINTS = 50
"""Points of a curve: each is stored in the notebook."""


def policies(
    mine: SetupLike | Mapping[str, SetupLike],
    workload: Workload,
    *,
    against: Iterable[SetupLike] | None = None,
    latency: str = "ttft",
    slo: SLO | None = None,
    **settings: Any,
) -> Experiment:
    """Run a policy of your own and the packaged ones on one workload.

    A class that crashes is reported with its step, and the others are run.

    Args:
        mine: a scheduler class, or arguments of `simulate`; see `setups`.
        workload: who arrives when.
        against: what to compare with; by default NeuronScheduler and the lessons' classes before
            it that decide otherwise: SeparatedScheduler and HoldbackScheduler.
        latency: what is plotted, one of metrics_plot.LATENCIES.
        slo: what goodput is measured by.
        settings: arguments of `simulate` that all have in common.

    Raises:
        ValueError: a setting is wrong; it is named.
    """
    if latency not in LATENCIES:
        raise ValueError(f"latency: {latency!r} must be one of {', '.join(LATENCIES)}")
    setups = make_setups([mine, *(_packaged() if against is None else against)], settings)
    trials = [Trial.of(setup, workload) for setup in setups]
    table = _policy_table(trials)
    if slo is not None:
        goodput = [trial.result.metrics(slo).goodput for trial in trials]
        table["goodput, requests/s"] = goodput
    chart = _latency_chart(trials, latency)
    title = LATENCIES[latency]
    medians = {
        trial.setup.name: (distribution.p50, distribution.p99)
        for trial in trials
        if (distribution := getattr(trial.result.metrics(), latency)).size and not trial.crash
    }
    words = "; ".join(
        f"{name}: half within {p50:.3g} s, 99 % within {p99:.3g} s"
        for name, (p50, p99) in medians.items()
    )
    return Experiment(
        question=f"Whose users have the shortest {title}?",
        answer=_who_is_shortest(medians),
        table=table,
        chart=chart,
        alt_text=f"Share of requests by {title}, one curve a policy. {words}.",
        notes=tuple(note for trial in trials for note in trial.notes),
        failed=any(trial.failed for trial in trials),
    )


def _packaged() -> list[type]:
    from ..scheduler import HoldbackScheduler, NeuronScheduler, SeparatedScheduler

    return [NeuronScheduler, SeparatedScheduler, HoldbackScheduler]


def _policy_table(trials: Sequence[Trial]) -> DataFrame:
    from pandas import DataFrame

    rows = []
    for trial in trials:
        m = trial.result.metrics()
        rows.append(
            {
                "policy": trial.setup.name,
                "TTFT p50, s": m.ttft.p50,
                "TTFT p99, s": m.ttft.p99,
                "ITL p50, s": m.itl.p50,
                "ITL p99, s": m.itl.p99,
                "end to end p50, s": m.e2e.p50,
                "output tokens/s": m.output_tokens_per_second,
                "padding share": m.padding_share,
                "shapes": m.num_shapes,
                "preemptions": m.num_preemptions,
                "finished": m.num_finished,
                "crashed": bool(trial.crash),
            }
        )
    return DataFrame(rows)


def _latency_chart(trials: Sequence[Trial], latency: str) -> Chart:
    from ..trace.run_columns import requests_frame

    series = []
    for trial in trials:
        times = requests_frame(trial.result.log)[latency].dropna().to_numpy()
        if len(times):
            shares = np.linspace(0, 1, min(MAX_POINTS, len(times)))
            at = [float(np.quantile(times, share)) for share in shares]
            series.append(Series(trial.setup.name, at, shares.tolist()))
    title = LATENCIES[latency]
    return Chart(
        title=f"Share of requests by {title} (further left is better)",
        x_title=f"{title}, seconds",
        y_title="share of requests",
        series=tuple(series),
        kind=CURVE,
        percent=True,
    )


def _who_is_shortest(medians: Mapping[str, tuple[float, float]]) -> str:
    if not medians:
        return "Nobody's: no policy finished a request."
    at_p50 = min(medians, key=lambda name: medians[name][0])
    at_p99 = min(medians, key=lambda name: medians[name][1])
    p50, p99 = medians[at_p50][0], medians[at_p99][1]
    if at_p50 == at_p99:
        return f"Those of {at_p50}, at the median ({p50:.3g} s) and at the 99th percentile."
    return (
        f"At the median those of {at_p50} ({p50:.3g} s), at the 99th percentile those of {at_p99} "
        f"({p99:.3g} s)."
    )
