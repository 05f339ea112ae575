"""Lesson 6: NeuronScheduler tracks its state, NeuronAsyncScheduler schedules a step ahead.

The last link of the chain adds the state machine: after each step the scheduler is IDLE, in
ACTIVE_PREFILL or in ACTIVE_DECODE. Nothing is decided by the state; it is what an operator, a
test or a widget looks at.

Source: the seed, "Scheduler State Machine", "State Determination" and "Scheduler Hierarchy".
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from .admission import KVAdmissionScheduler
from .metrics import NeuronMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

logger = init_logger(f"vllm.{__name__}")  # below "vllm", whose handler and level it shares

MAX_RECORDED_TRANSITIONS = 1000


class SchedulerState(str, Enum):
    """The seed's three states."""

    IDLE = "IDLE"
    ACTIVE_PREFILL = "ACTIVE_PREFILL"
    ACTIVE_DECODE = "ACTIVE_DECODE"


class Transition(NamedTuple):
    """One arrow of the state machine: taken in `step`, and why."""

    step: int
    before: SchedulerState
    after: SchedulerState
    cause: str


IDLE, PREFILL, DECODE = SchedulerState


class NeuronScheduler(KVAdmissionScheduler):
    """The production scheduler: one prefill or a batch of decodes, padded, never preempted.

    Against the seed's text: IDLE means that no request is left in any queue (hole B13: the seed
    forgets vLLM's second waiting queue), and it is reached as soon as the last request ends,
    not at the next call of `schedule()`, which vLLM's engine has no reason to make.

    Attributes:
        state: the state after the last step.
        last_transition: the arrow taken last; before and after may be the same state.
        transitions: the last arrows that changed the state, oldest first.
        metrics: for Prometheus, if the engine logs stats.
    """

    _state = IDLE
    metrics: NeuronMetrics | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_transition = Transition(0, IDLE, IDLE, "no request yet")
        self.transitions: deque[Transition] = deque(maxlen=MAX_RECORDED_TRANSITIONS)
        if self.log_stats:
            self.metrics = NeuronMetrics.from_scheduler(self)

    @property
    def state(self) -> SchedulerState:
        """The state after the last step."""
        return self._state

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule one padded step and update the state."""
        output = super().schedule(throttle_prefills)
        self._update_state(output)
        if self.metrics is not None:
            self.metrics.record(self, output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in the sampled tokens; the last one may leave nothing to do."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._enter_idle_if_empty("all decode complete and no prefill waiting")
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Abort requests; the last one may leave nothing to do."""
        finished = super().finish_requests(request_ids, finished_status)
        self._enter_idle_if_empty("last request aborted")
        return finished

    def _update_state(self, scheduler_output: SchedulerOutput) -> None:
        """Step 8: derive the state from what the step prefills.

        That was read from the output, whose counts are those before the step; a Request's own
        were advanced in the meantime, and would call the last chunk of a prompt a decode.
        """
        if scheduler_output.num_scheduled_tokens:
            after = PREFILL if self.scheduled_prefills else DECODE
            self._enter(after, self._explain(after, scheduler_output))
        elif sum(self.get_request_counts()) == 0:
            self._enter(IDLE, "no request left")
        # An empty step with requests left changes nothing: nothing ran.

    def _explain(self, after: SchedulerState, output: SchedulerOutput) -> str:
        """Say in the seed's words which arrow led to `after`."""
        before = self._state
        if after is DECODE:
            if before is DECODE:
                return "decode not finished"
            return "decodes go first" if self.has_prefill_in_running else "prefill completes"
        if before is IDLE:
            return "prefill in waiting queue"
        if before is DECODE:
            return "decode has capacity and prefill is waiting"
        if output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids:
            return "decode has capacity and new prefill is waiting"
        return "prefill has more segments"

    def _enter(self, after: SchedulerState, cause: str) -> None:
        transition = Transition(self.current_step, self._state, after, cause)
        self.last_transition = transition
        if after is not self._state:
            self.transitions.append(transition)
            if self.metrics is not None:
                self.metrics.enter(after.value)
            logger.debug(
                "step %d: %s -> %s (%s)", transition.step, self._state.value, after.value, cause
            )
        self._state = after

    def _enter_idle_if_empty(self, cause: str) -> None:
        if self._state is not IDLE and sum(self.get_request_counts()) == 0:
            self._enter(IDLE, cause)


class NeuronAsyncScheduler(NeuronScheduler, AsyncScheduler):
    """NeuronScheduler for vLLM's async engine, which schedules a step before the last returns.

    The order of the bases matters: `super()` in HoldbackScheduler then reaches AsyncScheduler,
    whose placeholders stand for the tokens still in flight. The seed overrides
    `_call_base_schedule()` to get there; with cooperative `super()` calls that is not needed.
    """
