"""Checks of schedulers: two classes, the same scenarios, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .guard import FINDINGS, code_files, cpu_limit, explain_error
from .result import NOT_RIGHT, NOT_SOLVED, SOLVED, CheckResult, require

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from .scenario import Scenario
    from .scenario_run import Step

NUM_SCENARIOS = 40
MAX_STEPS = 2000
"""Limit for one scenario; a right scheduler ends after a few hundred at most."""


def check_scheduler(
    yours: type[Scheduler],
    packaged: type[Scheduler],
    *,
    scenarios: int | Iterable[Scenario] = NUM_SCENARIOS,
    extra: Sequence[str] = (),
    **draw: Any,
) -> CheckResult:
    """Run two scheduler classes step by step in the same random scenarios and compare them.

    Args:
        yours: the class that the learner wrote.
        packaged: the class that it should behave like.
        scenarios: how many to draw, or scenarios of your own.
        extra: names of attributes that must be the same after each step, such as `state`.
        draw: for `draw_scenario`: `kv_pressure`, `not_ready`, `aborts`, `settings`.

    Raises:
        NotSolvedError: it is not solved, and NSL_REQUIRE_SOLVED is 1.
    """
    return require(compare_schedulers(yours, packaged, scenarios=scenarios, extra=extra, **draw))


def compare_schedulers(
    yours: type[Scheduler],
    packaged: type[Scheduler],
    *,
    scenarios: int | Iterable[Scenario] = NUM_SCENARIOS,
    extra: Sequence[str] = (),
    **draw: Any,
) -> CheckResult:
    """Do what `check_scheduler` does, and never raise: for classes that are meant to be wrong."""
    from .scenario import draw_scenario

    if isinstance(scenarios, int):
        scenarios = [draw_scenario(seed, **draw) for seed in range(scenarios)]
    num_scenarios = num_steps = 0
    for scenario in scenarios:
        found = _compare_in_scenario(yours, packaged, scenario, tuple(extra))
        if isinstance(found, CheckResult):
            return found
        num_scenarios += 1
        num_steps += found
    if not num_steps:
        return CheckResult(NOT_SOLVED, "nothing was checked: there is no scenario")
    return CheckResult(
        SOLVED,
        f"{yours.__name__} does what {packaged.__name__} does, in each of {num_steps} steps of "
        f"{num_scenarios} random scenarios",
    )


def _compare_in_scenario(
    yours: type[Scheduler], packaged: type[Scheduler], scenario: Scenario, extra: tuple[str, ...]
) -> CheckResult | int:
    """Return where they differ, or the number of steps in which they do not."""
    from .difference import find_difference
    from .scenario_run import Run
    from .scheduler_rules import find_broken_rule, rules_for

    rules = rules_for(packaged, scenario.settings)
    reference = Run(packaged, scenario, extra)
    run: Run | None = None
    while not reference.done:
        if reference.num_steps == MAX_STEPS:
            raise RuntimeError(
                f"{packaged.__name__} is not done with {scenario.name} after {MAX_STEPS} steps; "
                f"give a class that comes to an end, or another scenario"
            )
        theirs = reference.step()
        where = f"step {reference.num_steps}"
        try:
            with cpu_limit():
                if run is None:
                    where = f"making a {yours.__name__}"
                    run = Run(yours, scenario, extra)
                    where = "step 1"
                mine = run.step()
        except FINDINGS as error:  # whatever a learner's code may raise
            context = _context(scenario, theirs) if run else ()
            return explain_error(error, code_files(yours), where, context)
        broken = find_broken_rule(rules, mine, theirs)
        difference = find_difference(mine, theirs)
        if broken or difference:
            details = (broken, _no_answer(mine), *_context(scenario, theirs, mine))
            message = f"{where}: {difference or 'you break a rule'}"
            return CheckResult(NOT_RIGHT, message, tuple(filter(None, details)))
    return reference.num_steps


def _no_answer(mine: Step) -> str | None:
    if None not in mine.answers:
        return None
    return "can_schedule() returned None; it must answer True or False"


def _context(scenario: Scenario, theirs: Step, mine: Step | None = None) -> tuple[str, ...]:
    """Return what stood in the queues before the step and what each class made of it."""
    from .difference import describe_pacing

    settings = scenario.settings
    shown = ("max_num_seqs", "max_num_batched_tokens", "num_blocks")
    lines = [
        f"{scenario.name}: " + ", ".join(f"{name}={settings[name]}" for name in shown),
        f"before:   {'; '.join(theirs.events) or 'nobody came or went'}",
        f"waiting:  {' '.join(theirs.waiting) or '-'}",
        "running:  "
        + (
            " ".join(f"{r} (prefill)" if r in theirs.prefilling else r for r in theirs.running)
            or "-"
        ),
    ]
    if pacing := describe_pacing(theirs):
        lines.append(f"pacing:   {pacing}")
    if mine is not None:
        lines.append(f"you:      {_describe_scheduled(mine)}")
    return (*lines, f"packaged: {_describe_scheduled(theirs)}")


def _describe_scheduled(step: Step) -> str:
    parts = []
    for request_id, num_tokens in step.scheduled.items():
        padded = "" if step.padded is None else f" -> {step.padded.get(request_id)}"
        phase = "prefill" if request_id in step.prefills else "decode"
        parts.append(f"{phase} {request_id} {num_tokens}{padded}")
    return ", ".join(parts) or "nothing"


def pick(yours: Any, packaged: Any, *results: CheckResult) -> Any:
    """Return yours if every check of it is solved, else the packaged one meanwhile; say which."""
    if all(result.solved for result in results):
        print(f"running your {yours.__name__}")
        return yours
    print(f"running the packaged {packaged.__name__} meanwhile: yours is {_first_open(results)}")
    return packaged


def _first_open(results: Sequence[CheckResult]) -> str:
    return next(result.status for result in results if not result.solved)
