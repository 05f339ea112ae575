"""Policy diff: two schedulers, or two configurations, on one workload.

    diff = compare(NeuronScheduler, MyScheduler, workload, max_num_seqs=8)
    print(diff.first)       # the first step at which they decide differently, and why
    diff.table              # their figures side by side

Both are simulated. Steps are compared by number and by what was decided in them: who runs, in
which phase, with how many tokens, padded to what, and who is preempted. The clocks may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from ..reports.chart import BAR, Chart, Series
from ..reports.experiment_page import Experiment
from .decisions import describe_decision, describe_difference, describe_reason
from .setups import SetupLike, make_setups
from .trial import Trial

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..simulation.simulation import SimulationResult
    from ..trace.metrics import SLO, Metrics
    from ..trace.records import StepRecord
    from ..workloads.workload import Workload
    from .trial import Crash

MAX_STEPS = 20_000
"""Most steps compared: the record of each is kept in memory."""

FIRST_STEPS = 512
"""Two policies differ early as a rule, so few steps are looked at first, then more."""

FIGURES = {
    "ttft_p50": "TTFT p50, s",
    "ttft_p99": "TTFT p99, s",
    "itl_p50": "ITL p50, s",
    "itl_p99": "ITL p99, s",
    "e2e_p50": "end to end p50, s",
    "e2e_p99": "end to end p99, s",
    "output_tokens_per_second": "output tokens/s",
    "goodput": "goodput, requests/s",
    "makespan": "makespan, s",
    "running_mean": "running requests, mean",
    "padding_share": "padding share",
    "num_shapes": "shapes to compile",
    "num_preemptions": "preemptions",
    "num_finished": "requests finished",
}
PLOTTED = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "e2e_p99",
           "output_tokens_per_second")  # fmt: skip


@dataclass(frozen=True)
class Side:
    """What one of the two did in the first step at which they differ.

    Attributes:
        name: whose.
        decision: what it decided, in words.
        reason: why, as far as the scheduler says.
        clock: simulated seconds at which the step began, or None if there was no step.
        record: the step, or None if there was none.
    """

    name: str
    decision: str
    reason: str
    clock: float | None
    record: StepRecord | None


@dataclass(frozen=True)
class FirstDifference:
    """The first step at which two runs differ.

    Attributes:
        step: its number.
        what: the difference, in words.
        sides: what each did.
    """

    step: int
    what: str
    sides: tuple[Side, Side]

    def __str__(self) -> str:
        lines = [f"step {self.step}: {self.what}"]
        for side in self.sides:
            at = "" if side.clock is None else f" at {side.clock:.4g} s"
            lines.append(f"  {side.name}{at}: {side.decision}")
            if side.reason:
                lines.append(f"    because: {side.reason}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """An Experiment with two runs; see `compare`.

    Attributes:
        names: of the two.
        first: the first difference, or None if there is none in the steps that were compared.
        num_steps_compared: how many were.
        metrics: the figures of each; of one that crashed, up to then.
        crashes: by name, of those that did.
    """

    names: tuple[str, str]
    first: FirstDifference | None
    num_steps_compared: int
    metrics: tuple[Metrics, Metrics]
    crashes: Mapping[str, Crash]

    @property
    def details(self) -> str:
        """The first difference, in words."""
        return str(self.first) if self.first else ""


def compare(
    a: SetupLike,
    b: SetupLike,
    workload: Workload,
    *,
    names: tuple[str, str] | None = None,
    slo: SLO | None = None,
    padding: bool = True,
    max_steps: int = MAX_STEPS,
    **settings: Any,
) -> Comparison:
    """Run two setups on one workload; find where they part, and what it is worth.

    Args:
        a: a scheduler class or a mapping of arguments of `simulate`; see `setups`.
        b: the other.
        workload: who arrives when.
        names: what to call them; by default the classes' names or what the mappings set.
        slo: what goodput is measured by.
        padding: whether another padded size is a difference. Without it two ladders are compared
            by who runs when.
        max_steps: steps to compare; figures are of the whole runs in any case.
        settings: arguments of `simulate` that both have in common.

    Raises:
        ValueError: a setting is wrong; it is named. An exception of a scheduler while it
            schedules is not raised but reported, with its step.
    """
    setups = make_setups(dict(zip(names, (a, b), strict=True)) if names else _named(a, b), settings)
    left, right = (Trial.of(setup, workload) for setup in setups)
    first, num_compared = _find_first_difference(left, right, workload, max_steps, padding=padding)
    metrics = (left.result.metrics(slo), right.result.metrics(slo))
    pair = (left.setup.name, right.setup.name)
    crashes = {run.setup.name: run.crash for run in (left, right) if run.crash}
    chart = _chart(pair, None if crashes else metrics)
    return Comparison(
        question=f"Where do {pair[0]} and {pair[1]} part, and what is it worth?",
        answer=_answer(first, num_compared, (left, right), metrics),
        table=_table(pair, metrics, has_ratios=not crashes),
        chart=chart,
        alt_text=_alt_text(chart, pair),
        notes=(*left.notes, *right.notes),
        failed=left.failed or right.failed,
        names=pair,
        first=first,
        num_steps_compared=num_compared,
        metrics=metrics,
        crashes=crashes,
    )


def _named(a: SetupLike, b: SetupLike) -> Mapping[str, SetupLike]:
    names = [setup.name for one in (a, b) for setup in make_setups([one], {})]
    if names[0] == names[1]:
        names = [f"{names[0]} (a)", f"{names[1]} (b)"]
    return dict(zip(names, (a, b), strict=True))


def _find_first_difference(
    left: Trial, right: Trial, workload: Workload, max_steps: int, *, padding: bool
) -> tuple[FirstDifference | None, int]:
    """Return the first difference and how many steps were compared."""
    num_steps = min(FIRST_STEPS, max_steps)
    while True:
        results = [run.first_steps(workload, num_steps) for run in (left, right)]
        first = _compare_traces((left, right), results, padding=padding)
        lengths = [len(result.trace) for result in results]
        if first is not None and first.step <= num_steps:
            return first, first.step
        if max(lengths) < num_steps or num_steps >= max_steps:
            return None, max(lengths)
        num_steps = min(4 * num_steps, max_steps)


def _compare_traces(
    runs: tuple[Trial, Trial], results: list[SimulationResult], *, padding: bool
) -> FirstDifference | None:
    names = tuple(run.setup.name for run in runs)
    traces = tuple(result.trace for result in results)
    # One step more: a crash comes after the last step that was recorded.
    steps = chain(zip_longest(*traces), [(None, None)])
    for step, pair in enumerate(steps, start=1):
        crashed = [run.setup.name for run in runs if run.crash and run.crash.step == step]
        if crashed:
            return _at(step, f"{' and '.join(crashed)} crashed", runs, results, pair)
        if what := describe_difference(step, names, pair, traces, padding=padding):
            return _at(step, what, runs, results, pair)
    return None


def _at(
    step: int,
    what: str,
    runs: tuple[Trial, Trial],
    results: list[SimulationResult],
    records: tuple[StepRecord | None, ...],
) -> FirstDifference:
    sides = []
    for run, result, record in zip(runs, results, records, strict=True):
        if record is not None:
            decision, reason = describe_decision(record), describe_reason(record)
        elif run.crash and run.crash.step == step:
            decision, reason = "crashed", run.crash.error
        else:
            decision, reason = "has no such step", "all its requests have ended"
        clock = None if record is None else result.log.runs[step - 1].start
        sides.append(Side(run.setup.name, decision, reason, clock, record))
    return FirstDifference(step, what, (sides[0], sides[1]))


def _answer(
    first: FirstDifference | None,
    num_compared: int,
    runs: tuple[Trial, Trial],
    metrics: tuple[Metrics, Metrics],
) -> str:
    a, b = (run.setup.name for run in runs)
    if first is None:
        figures = [m.as_dict() for m in metrics]
        all_of_them = num_compared >= max(run.result.log.num_steps for run in runs)
        if all_of_them:
            return f"They do not: {a} and {b} decide the same in all {num_compared} steps."
        later = "their figures differ, so they part later; raise max_steps"
        same = "and their figures are equal"
        rest = same if figures[0] == figures[1] else later
        return f"Not in the first {num_compared} steps, {rest}."
    words = f"In step {first.step}: {first.what}."
    if any(run.crash for run in runs):
        return words
    worth = [
        f"{FIGURES[figure].partition(',')[0]} {_ratio_in_words(*_pair(metrics, figure))}"
        for figure in ("ttft_p99", "itl_p99", "output_tokens_per_second")
    ]
    return f"{words} {b} against {a}: {', '.join(worth)}."


def _ratio_in_words(before: float, after: float) -> str:
    if not before:
        return f"{after:.3g} instead of 0"
    return f"x{after / before:.2f}"


def _pair(metrics: tuple[Metrics, Metrics], figure: str) -> tuple[float, float]:
    return metrics[0].as_dict()[figure], metrics[1].as_dict()[figure]


def _table(
    names: tuple[str, str], metrics: tuple[Metrics, Metrics], *, has_ratios: bool
) -> DataFrame:
    from pandas import DataFrame

    rows = []
    for figure, title in FIGURES.items():
        a, b = _pair(metrics, figure)
        # Half a run has figures, but nothing to compare them with.
        rows.append((title, a, b, b / a if a and has_ratios else None))
    return DataFrame(rows, columns=["figure", *names, "ratio"])


def _chart(names: tuple[str, str], metrics: tuple[Metrics, Metrics] | None) -> Chart:
    ratios = {}
    if metrics is not None:
        for figure in PLOTTED:
            a, b = _pair(metrics, figure)
            if a and b:
                ratios[FIGURES[figure].partition(",")[0]] = b / a
    return Chart(
        title=f"{names[1]} against {names[0]} (1: equal)",
        x_title="less is better, but for output tokens/s",
        y_title="ratio",
        series=(
            Series(
                names[1],
                tuple(ratios),
                tuple(ratios.values()),
                tuple(f"x{ratio:.3g}" for ratio in ratios.values()),
            ),
        ),
        kind=BAR,
        ratio=True,
    )


def _alt_text(chart: Chart, names: tuple[str, str]) -> str:
    (series,) = chart.series
    bars = ", ".join(f"{x} {label}" for x, label in zip(series.x, series.labels, strict=True))
    shown = bars or "nothing, for there are no figures to compare"
    return f"Bars: figures of {names[1]} as multiples of those of {names[0]}: {shown}."
