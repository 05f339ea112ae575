"""One run: the figures of a scheduler on a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..reports.chart import CURVE, Chart, Series
from ..reports.experiment_page import Experiment
from .setups import SetupLike, make_setups
from .trial import Trial

if TYPE_CHECKING:
    from ..trace.metrics import SLO
    from ..trace.run_log import RunLog
    from ..workloads.workload import Workload

MAX_POINTS = 200
"""Points of a curve."""


def one_run(
    setup: SetupLike, workload: Workload, *, slo: SLO | None = None, **settings: Any
) -> Experiment:
    """Run one setup; see where the queue builds up.

    Args:
        setup: a scheduler class, or arguments of `simulate`; see `setups`.
        workload: who arrives when.
        slo: what goodput is measured by.
        settings: arguments of `simulate`.

    Raises:
        ValueError: a setting is wrong; it is named.
    """
    from pandas import DataFrame

    from ..scheduler import NeuronScheduler

    named = {"the run": setup}
    (made,) = make_setups(named, {"scheduler": NeuronScheduler, **settings})
    trial = Trial.of(made, workload)
    metrics = trial.result.metrics(slo)
    name = made.settings["scheduler"].__name__
    chart, words = _load_chart(trial.result.log)
    return Experiment(
        question=f"How does {name} serve {workload.name}?",
        answer=(
            f"{metrics.num_finished} of {metrics.num_requests} requests in {metrics.makespan:.4g} "
            f"s; half of the first tokens come within {metrics.ttft.p50:.3g} s, 99 % within "
            f"{metrics.ttft.p99:.3g} s."
        ),
        table=DataFrame(metrics.rows(), columns=["figure", "value"]),
        chart=chart,
        alt_text=f"Requests over time. {words}",
        notes=tuple(trial.notes),
        failed=trial.failed,
    )


def _load_chart(log: RunLog) -> tuple[Chart, str]:
    """Return running and waiting requests over time, and the most of each in words."""
    from ..trace.run_columns import steps_frame

    steps = steps_frame(log)
    series, words = [], "There was no step."
    if len(steps):
        edges = np.linspace(0, steps["end"].iloc[-1], MAX_POINTS)
        at = np.minimum(np.searchsorted(steps["end"], edges), len(steps) - 1)
        for column in ("running", "waiting"):
            values = steps[column].iloc[at].tolist()
            series.append(Series(column, edges.tolist(), values))
        most = steps[["running", "waiting"]].max()
        words = f"At most {most['running']:g} run and {most['waiting']:g} wait at once."
    chart = Chart(
        title=f"Requests over time. {words}",
        x_title="time, seconds",
        y_title="requests",
        series=tuple(series),
        kind=CURVE,
    )
    return chart, words
