"""Trial: a simulation of a scheduler that may crash, as a learner's own may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .setups import Setup, name_of

if TYPE_CHECKING:
    from ..simulation.simulation import SimulationResult
    from ..workloads.workload import Workload


ENGINES_NAME = "num_gpu_blocks_override"


@dataclass(frozen=True)
class Crash:
    """A scheduler raised an exception.

    Attributes:
        step: the step that could not be finished.
        error: its type and message.
    """

    step: int
    error: str


@dataclass(frozen=True)
class Trial:
    """A whole run without records, or one up to its crash.

    Attributes:
        setup: what was run.
        result: what came of it.
        crash: what ended it, or None.
    """

    setup: Setup
    result: SimulationResult
    crash: Crash | None

    @classmethod
    def of(cls, setup: Setup, workload: Workload) -> Trial:
        """Run `setup` on `workload`.

        Raises:
            ValueError: a setting is wrong, or the scheduler raised before its first step.
        """
        try:
            return cls(setup, setup.run(workload, keep_records=False), None)
        except Exception as error:
            step = _find_crash(setup, workload)
            if not step and isinstance(error, (ValueError, OSError)):
                raise
            if not step:
                name = name_of(setup.settings.get("scheduler"))
                raise ValueError(
                    f"scheduler: {name} raised {type(error).__name__} before the first step "
                    f"({error}); mend it: its __init__ must take what vLLM's Scheduler takes and "
                    f"pass it on to super().__init__()"
                ) from error
            crash = Crash(step, f"{type(error).__name__}: {error}")
        before = setup.run(workload, keep_records=False, fast_forward=False, max_steps=step - 1)
        return cls(setup, before, crash)

    @property
    def failed(self) -> bool:
        """Tell whether it crashed or stalled, or all its requests were refused."""
        log = self.result.log
        all_refused = log.num_refused > 0 and not log.request_ids
        return self.crash is not None or self.result.stalled or all_refused

    @property
    def notes(self) -> list[str]:
        """What to know of the run."""
        name, result = self.setup.name, self.result
        notes = []
        if self.crash:
            error, step = self.crash.error, self.crash.step
            notes.append(f"{name} crashed in step {step} ({error}); its figures end there.")
        if result.stalled:
            notes.append(f"{name} stalled: it stopped scheduling although requests were left.")
        if result.refused:
            reason = next(iter(result.refused.values()))
            # The scheduler's text names the engine's setting; here it has other names.
            here = " (here: num_kv_blocks, --kv-tokens)" if ENGINES_NAME in reason else ""
            notes.append(
                f"{name}: requests refused: {len(result.refused)}; the first: {reason}{here}"
            )
        return notes

    def first_steps(self, workload: Workload, num_steps: int) -> SimulationResult:
        """Return the run once more, up to `num_steps`, with its records."""
        if self.crash:
            num_steps = min(num_steps, self.crash.step - 1)
        return self.setup.run(workload, keep_records=True, fast_forward=False, max_steps=num_steps)


def _find_crash(setup: Setup, workload: Workload) -> int:
    """Return the step in which the setup's scheduler raises, or 0 if it is not in a step."""
    from ..scheduler import NeuronScheduler

    base = setup.settings.get("scheduler", NeuronScheduler)
    num_steps = 0

    class Counted(base):  # type: ignore[misc, valid-type]
        # Counts outside itself: any attribute might be one of the learner's.
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal num_steps
            num_steps += 1
            return super().schedule(*args, **kwargs)

    try:
        setup.run(workload, scheduler=Counted, keep_records=False, fast_forward=False)
    except Exception:  # noqa: BLE001  (the caller has it)
        return num_steps
    return 0
