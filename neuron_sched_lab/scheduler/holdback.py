"""Lesson 2: HoldbackScheduler lets at most one new request into a step.

vLLM's scheduler starts as many waiting requests as fit the token budget. Neuron runs one prefill
at a time, so somebody has to decide who goes first. The trick is not to rewrite the scheduler
but to show it less: set the waiting queue aside, put back what may start, delegate, restore.

Source: the seed, "Holdback Queue Pattern" (steps 1, 2, 4 and 5) and "Admission Control".
"""

from __future__ import annotations

from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler

from . import compat

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.request_queue import RequestQueue
    from vllm.v1.request import Request


class HoldReason(str, Enum):
    """Why the head of the waiting queue was not let into a step."""

    AT_CAPACITY = "at capacity"
    PREFILL_IN_PROGRESS = "prefill in progress"
    PREFILL_BATCH_FULL = "prefill batch full"
    KV_SATURATED = "KV cache saturated"
    DECODES_FIRST = "decodes go first"
    ADAPTERS_FULL = "adapter slots taken"
    PAUSED = "scheduler paused"
    NOT_READY = "not ready"


def is_prefill(num_computed_tokens: int, num_prompt_tokens: int, num_output_tokens: int) -> bool:
    """Tell a prefill from a decode by counts alone.

    A request decodes when everything but its newest token is in the KV cache. Without outputs
    that is the seed's rule, computed < prompt. A request that was preempted, and must compute its
    outputs again as well, stays a prefill until it has caught up with them (hole B4: the seed
    calls the second half of that work a decode of many tokens).

    Args:
        num_computed_tokens: tokens in the KV cache before the step.
        num_prompt_tokens: length of the prompt.
        num_output_tokens: tokens generated so far, those still in flight included.
    """
    return num_computed_tokens < num_prompt_tokens + max(num_output_tokens - 1, 0)


class HoldbackScheduler(Scheduler):
    """A vLLM scheduler that admits at most one waiting request a step, in queue order.

    Use it as any vLLM scheduler: `LLM(scheduler_cls=HoldbackScheduler)`. Phases still mix: the
    prefill that is let in shares its step with the running decodes. Lesson 3 mends that.

    Against the seed's text: the queues are swapped as objects instead of moved request by request
    (hole B10: that cost 0.4 us for each waiting request in each step), through vLLM's queue API,
    so that the priority policy works too (B14); vLLM's second waiting queue is held back with
    the first (B3); a paused scheduler admits nobody (B6); a paused streaming session counts
    against the capacity (B11); and an exception in vLLM's scheduler leaves every queue whole.

    Attributes:
        holdback_queue: the real waiting queue while a step is scheduled, else empty.
        hold_reason: why, in the last step, the first request not admitted was not, or None.
        held_back: that request, or None.
        admitted_from: the requests let into the last step, each with the queue it came from.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_num_seqs = compat.get_max_num_running(self)
        # One prefill a step is a limit of the hardware's graphs, not a setting.
        self.max_prefills_per_batch = 1
        self.holdback_queue = create_request_queue(self.policy)
        self._side_holdback = create_request_queue(self.policy)
        self.admitted_from: dict[Request, RequestQueue] = {}
        self._passed_over: list[Request] = []
        self._throttle_prefills = False
        self.hold_reason: HoldReason | None = None
        self.held_back: Request | None = None

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule one step; see `Scheduler.schedule`.

        Args:
            throttle_prefills: vLLM's request to put prefills off while decodes run (data
                parallelism); passed on.
        """
        self._throttle_prefills = throttle_prefills
        was_capacity_bound = self.prefill_capacity_bound
        self._set_aside_waiting()
        try:
            self._restore_admitted()
            return self._schedule_visible()
        finally:
            self._restore_waiting()
            # vLLM judges by the waiting queue it saw, which never holds more than one request.
            deferred = throttle_prefills and not was_capacity_bound
            self.prefill_capacity_bound = was_capacity_bound if deferred else bool(self.waiting)

    def _set_aside_waiting(self) -> None:
        """Step 1: clear the base scheduler's view of the waiting requests."""
        self.waiting, self.holdback_queue = self.holdback_queue, self.waiting
        side = getattr(self, compat.SIDE_QUEUE)
        setattr(self, compat.SIDE_QUEUE, self._side_holdback)
        self._side_holdback = side

    def _restore_admitted(self) -> None:
        """Step 2: put back what may start, and stop at the first that may not (FIFO)."""
        self.hold_reason = self.held_back = None
        self.admitted_from.clear()
        self._passed_over = []
        while found := compat.next_candidate(self, self.holdback_queue, self._side_holdback):
            request, queue = found
            if not self.can_schedule(request):
                self.held_back = request
                return
            self._admit(request, queue)
        self._explain_nobody_ready()

    def _admit(self, request: Request, queue: RequestQueue) -> None:
        """Move `request` from `queue`, which is held back, into the base scheduler's view."""
        if request is queue.peek_request():
            queue.pop_request()
        else:
            self._passed_over = list(takewhile(lambda other: other is not request, queue))
            queue.remove_request(request)
        self.admitted_from[request] = queue
        # vLLM looks into both queues, but while new requests are paused into the second only.
        visible = getattr(self, compat.SIDE_QUEUE) if self.pause_state else self.waiting
        visible.add_request(request)

    def _explain_nobody_ready(self) -> None:
        held = self.holdback_queue or self._side_holdback
        if held:
            self.held_back = held.peek_request()
            self.hold_reason = HoldReason.PAUSED if self.pause_state else HoldReason.NOT_READY

    def can_schedule(self, request: Request) -> bool:
        """Tell whether a waiting request may start in this step, noting `hold_reason` if not.

        The checks and their order are the seed's. Bucket fit is none of them: chunked prefill
        cuts any prompt into chunks that fit.
        """
        if self.at_capacity:
            return self._hold(HoldReason.AT_CAPACITY)
        if self.has_prefill_in_running:
            return self._hold(HoldReason.PREFILL_IN_PROGRESS)
        if len(self.admitted_from) >= self.max_prefills_per_batch:
            return self._hold(HoldReason.PREFILL_BATCH_FULL)
        if not self._adapter_fits(request):
            return self._hold(HoldReason.ADAPTERS_FULL)
        return True

    def _adapter_fits(self, request: Request) -> bool:
        """Tell whether the worker has a slot for the LoRA adapter of `request`.

        All running requests count, for a decode step runs them all at once. vLLM would look
        behind a request that does not fit; here it keeps its place. The slots it waits for are
        those of running requests, which end; were others let past, they could keep the slots taken
        for ever.
        """
        if self.lora_config is None or request.lora_request is None:
            return True
        running = {r.lora_request.lora_int_id for r in self.running if r.lora_request is not None}
        running.add(request.lora_request.lora_int_id)
        return len(running) <= self.lora_config.max_loras

    def _hold(self, reason: HoldReason) -> bool:
        self.hold_reason = reason
        return False

    @property
    def num_seats_taken(self) -> int:
        """Running requests plus streaming sessions that wait for input with their blocks held."""
        return len(self.running) + self.num_waiting_for_streaming_input

    @property
    def at_capacity(self) -> bool:
        """True if no further request may run."""
        return self.num_seats_taken >= self.max_num_seqs

    @property
    def has_prefill_in_running(self) -> bool:
        """True if any running request is still in its prefill phase."""
        return bool(self._get_running_prefills())

    def _get_running_prefills(self) -> list[Request]:
        # vLLM's flag is the cheap half of the test: no running request is a prefill without it.
        return [r for r in self.running if r.is_prefill_chunk and self._is_prefill_request(r)]

    def _is_prefill_request(self, request: Request) -> bool:
        """Classify a request between two steps; see `is_prefill`."""
        num_output_tokens = request.num_output_tokens + request.num_output_placeholders
        return is_prefill(request.num_computed_tokens, request.num_prompt_tokens, num_output_tokens)

    def _schedule_visible(self) -> SchedulerOutput:
        """Schedule what was left visible. Lesson 3 hides more before this."""
        return self._call_base_schedule()

    def _call_base_schedule(self) -> SchedulerOutput:
        """Step 4: delegate to vLLM's scheduler, the plain or the async one."""
        return super().schedule(self._throttle_prefills)

    def _restore_waiting(self) -> None:
        """Step 5: whatever vLLM left in its view goes back to its place in its queue."""
        waiting, side = self.waiting, getattr(self, compat.SIDE_QUEUE)
        while waiting:
            request = _pop_last(waiting)
            self._put_back(request, self.admitted_from.get(request, self.holdback_queue))
        while side:
            self._put_back(_pop_last(side), self._side_holdback)
        self.waiting, self.holdback_queue = self.holdback_queue, waiting
        setattr(self, compat.SIDE_QUEUE, self._side_holdback)
        self._side_holdback = side

    def _put_back(self, request: Request, queue: RequestQueue) -> None:
        queue.prepend_request(request)
        if request in self.admitted_from and queue is self.admitted_from[request]:
            for passed_over in reversed(self._passed_over):
                queue.remove_request(passed_over)
                queue.prepend_request(passed_over)

    def get_request_counts(self) -> tuple[int, int]:
        """Return (running, waiting), those held back included, even in the middle of a step."""
        num_running, num_waiting = super().get_request_counts()
        return num_running, num_waiting + len(self.holdback_queue) + len(self._side_holdback)


def _pop_last(queue: RequestQueue) -> Request:
    """Remove and return the last request; prepending one by one from the end keeps the order."""
    last = list(queue)[-1]
    queue.remove_request(last)
    return last
