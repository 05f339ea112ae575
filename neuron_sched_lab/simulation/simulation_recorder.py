"""SimulationRecorder: a Recorder with simulated times; it can write a run of steps in one go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..settings.environment import prepare_environment

prepare_environment()

from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402

from ..engine.recorder import Recorder  # noqa: E402
from ..trace.records import DECODE, Scheduled, StepRecord  # noqa: E402
from ..workloads.request import FILLER_TOKEN  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass
class DecodeRun:
    """Decode steps that follow each other and are alike.

    Attributes:
        requests: the running requests, all of which decode, in batch order.
        ids: their ids.
        computed: tokens in the KV cache of each before the first step.
        start: start of the first step, in seconds.
        ends: end of each step.
        kv_used: KV blocks in use in each step.
        row_bucket: rows of the padded decode batch.
        num_waiting: waiting requests, those held back included.
        ending: the requests that the last step ends.
        first_cause: why the scheduler's state is what it is after the first step; in the others
            it is because nothing changed.
    """

    requests: list[Request]
    ids: list[str]
    computed: list[int]
    start: float
    ends: list[float]
    kv_used: list[int]
    row_bucket: int
    num_waiting: int
    ending: list[Request]
    first_cause: str | None = None


class SimulationRecorder(Recorder):
    """Records the steps of a VirtualEngine.

    Attributes:
        step_seconds: what the step that is being recorded takes; set by the engine.
    """

    step_seconds = 0.0

    def _complete(self, pending: Any, outputs: Any, model_done: float) -> StepRecord:
        record = super()._complete(pending, outputs, model_done)
        return replace(record, schedule_seconds=0.0, model_seconds=self.step_seconds)

    def record_run(self, run: DecodeRun) -> None:
        """Write a record of each step of `run`, as if `schedule()` had been called for it.

        To be called when the run's blocks are allocated and before it ends any request.
        """
        first = self._snapshot(_first_output(run))
        transition = getattr(self._scheduler, "last_transition", None)
        later_cause = None if transition is None else transition.cause
        starts = [run.start, *run.ends[:-1]]
        block_size = self._scheduler.block_size
        tables = [blocks for _, blocks in first.kv_blocks]
        held: list[tuple[int, ...]] = [()] * len(tables)
        for i, (start, end) in enumerate(zip(starts, run.ends, strict=True)):
            self._num_steps += 1
            # A request's blocks are sliced again only when they change: slicing many takes time.
            for place, num_computed in enumerate(run.computed):
                if i == 0 or (num_computed + i) % block_size == 0:
                    held[place] = tables[place][: (num_computed + i) // block_size + 1]
            self.trace.records.append(
                replace(
                    first,
                    step=self._num_steps,
                    cause=later_cause if i else run.first_cause,
                    scheduled=tuple(
                        Scheduled(request_id, DECODE, num_computed + i, 1, 1, (FILLER_TOKEN,))
                        for request_id, num_computed in zip(run.ids, run.computed, strict=True)
                    ),
                    kv_blocks_used=run.kv_used[i],
                    kv_blocks=tuple(zip(run.ids, held, strict=True)),
                    model_seconds=end - start,
                )
            )

    def note_finished(self, finished: list[tuple[str, str]]) -> None:
        """Add to the last record whom its step ended, as (id, reason)."""
        self.trace.records[-1] = replace(self.trace.records[-1], finished=tuple(finished))


def _first_output(run: DecodeRun) -> SchedulerOutput:
    """Return what `schedule()` would have returned for the first step of `run`."""
    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = dict.fromkeys(run.ids, 1)
    cached = output.scheduled_cached_reqs
    cached.req_ids = run.ids
    cached.num_computed_tokens = run.computed
    cached.num_output_tokens = [
        num_computed + 1 - request.num_prompt_tokens
        for request, num_computed in zip(run.requests, run.computed, strict=True)
    ]
    return output
