"""Recorder: watches a scheduler and writes one StepRecord a step.

It wraps `schedule()`, `update_from_output()` and `finish_requests()` of one scheduler object, so
it works for any vLLM scheduler class, in any engine or without one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..scheduler import compat
from ..scheduler.admission import NUM_NULL_BLOCKS
from ..scheduler.buckets import get_bucket_for_count
from ..scheduler.padding import get_scheduled_prefills
from ..trace.records import (
    DECODE,
    EMPTY,
    MIXED,
    PREFILL,
    Scheduled,
    StepInputs,
    StepRecord,
    TraceConfig,
)
from ..trace.trace import Trace

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

MAX_QUEUE_IDS = 1000
"""Ids recorded of one queue; its full length is recorded as a number."""


def get_trace_config(scheduler: Scheduler) -> TraceConfig:
    """Read the settings of a live scheduler; what it does not have is None."""
    config = scheduler.vllm_config
    prefill_ladder = getattr(scheduler, "num_batched_tokens_buckets", None)
    decode_ladder = getattr(scheduler, "num_seqs_buckets", None)
    return TraceConfig(
        scheduler=type(scheduler).__name__,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_model_len=scheduler.max_model_len,
        block_size=scheduler.block_size,
        kv_blocks_total=scheduler.kv_cache_manager.block_pool.num_gpu_blocks - NUM_NULL_BLOCKS,
        num_batched_tokens_buckets=None if prefill_ladder is None else tuple(prefill_ladder),
        num_seqs_buckets=None if decode_ladder is None else tuple(decode_ladder),
        max_kv_concurrent=getattr(scheduler, "_max_kv_concurrent", None),
        kv_admission=_get_kv_admission(scheduler),
    )


def _get_kv_admission(scheduler: Scheduler) -> str | None:
    # SeparatedScheduler has the setting too, but only where there is a bound does it mean anything.
    if not hasattr(scheduler, "_max_kv_concurrent"):
        return None
    return getattr(getattr(scheduler, "neuron_config", None), "kv_admission", None)


class _Pending(NamedTuple):
    """A step that was scheduled and whose tokens are not back yet."""

    output: SchedulerOutput
    record: StepRecord
    scheduled_at: float


class Recorder:
    """Records the steps of `scheduler` into `trace` from now on.

    Args:
        scheduler: whose steps.
        trace: where to.
        get_inputs: returns the tensors of the step that was executed last.

    Attributes:
        trace: where the records go, each when its tokens are back.
        aborted: ids aborted since the last record.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        trace: Trace,
        get_inputs: Callable[[], StepInputs | None] = lambda: None,
    ) -> None:
        self.trace = trace
        self._get_inputs = get_inputs
        self._scheduler = scheduler
        self._num_steps = len(trace)
        # Async engines schedule a step before the last one's tokens are back.
        self._pending: deque[_Pending] = deque()
        self.aborted: list[str] = []
        self._kv_blocks: dict[str, tuple[int, ...]] = {}
        self._in_update = False
        self._schedule = scheduler.schedule
        self._update_from_output = scheduler.update_from_output
        self._finish_requests = scheduler.finish_requests
        scheduler.schedule = self.schedule
        scheduler.update_from_output = self.update_from_output
        scheduler.finish_requests = self.finish_requests

    def detach(self) -> None:
        """Give the scheduler its own methods back."""
        del self._scheduler.schedule
        del self._scheduler.update_from_output
        del self._scheduler.finish_requests

    @property
    def next_step(self) -> int:
        """Number of the step that is scheduled next."""
        return self._num_steps + 1

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule a step and remember it as pending."""
        self._take_inputs()
        before = perf_counter()
        output = self._schedule(throttle_prefills)
        after = perf_counter()
        self._num_steps += 1
        record = replace(self._snapshot(output), schedule_seconds=after - before)
        self._pending.append(_Pending(output, record, after))
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in the tokens of the oldest pending step and complete its record."""
        model_done = perf_counter()
        self._take_inputs()
        self._in_update = True
        try:
            outputs = self._update_from_output(scheduler_output, model_runner_output)
        finally:
            self._in_update = False
        while self._pending:
            pending = self._pending.popleft()
            if pending.output is scheduler_output:
                self.trace.records.append(self._complete(pending, outputs, model_done))
                break
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Note who ended from outside: aborted by the user, or failed within a step."""
        requests = self._finish_requests(request_ids, finished_status)
        if not self._in_update:
            self.aborted += [r.request_id for r in requests]
        return requests

    def _take_inputs(self) -> None:
        """Add its tensors to the newest pending step, which has been executed by now."""
        if self._pending and self._pending[-1].record.inputs is None:
            newest = self._pending.pop()
            if newest.record.scheduled:
                newest = newest._replace(record=replace(newest.record, inputs=self._get_inputs()))
            self._pending.append(newest)

    def _snapshot(self, output: SchedulerOutput) -> StepRecord:
        scheduler = self._scheduler
        scheduled = self._scheduled(output)
        phase = _phase_of(scheduled)
        bucket = None
        if phase == DECODE and hasattr(scheduler, "num_seqs_buckets"):
            bucket = get_bucket_for_count(len(scheduled), scheduler.num_seqs_buckets)
        transition = getattr(scheduler, "last_transition", None)
        hold_reason = getattr(scheduler, "hold_reason", None)
        held_head = getattr(scheduler, "held_back", None)
        waiting, held_back, num_waiting, num_held_back = self._queues()
        pool = scheduler.kv_cache_manager.block_pool
        usable = pool.num_gpu_blocks - NUM_NULL_BLOCKS
        return StepRecord(
            step=self._num_steps,
            state=None if transition is None else transition.after.value,
            cause=None if transition is None else transition.cause,
            phase=phase,
            scheduled=scheduled,
            waiting=waiting,
            held_back=held_back,
            hidden=tuple(r.request_id for r in getattr(scheduler, "hidden_reqs", ())),
            held_decodes=tuple(r.request_id for r in getattr(scheduler, "held_decodes", ())),
            running=tuple(r.request_id for r in scheduler.running),
            num_waiting=num_waiting,
            num_held_back=num_held_back,
            hold_reason=None if hold_reason is None else hold_reason.value,
            held_head=None if held_head is None else held_head.request_id,
            decode_batch_bucket=bucket,
            kv_blocks_used=usable - pool.get_num_free_blocks(),
            kv_blocks_total=usable,
            kv_blocks=self._held_blocks(),
            preempted=tuple(sorted(output.preempted_req_ids or ())),
        )

    def _scheduled(self, output: SchedulerOutput) -> tuple[Scheduled, ...]:
        prefills = set(get_scheduled_prefills(output, self._scheduler.requests))
        padded = getattr(output, "num_scheduled_tokens_padded", None) or output.num_scheduled_tokens
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        return tuple(
            Scheduled(
                request_id=req_id,
                phase=PREFILL if req_id in prefills else DECODE,
                num_computed_tokens=computed[req_id],
                num_tokens=num_tokens,
                num_padded_tokens=padded[req_id],
            )
            for req_id, num_tokens in output.num_scheduled_tokens.items()
        )

    def _queues(self) -> tuple[tuple[str, ...], tuple[str, ...], int, int]:
        """Return the waiting and the held back ids, and how many there are of each."""
        scheduler = self._scheduler
        queues = (getattr(scheduler, compat.SIDE_QUEUE), scheduler.waiting)
        ids = [r.request_id for queue in queues for r in islice(queue, MAX_QUEUE_IDS)]
        total = sum(len(queue) for queue in queues)
        admitted = getattr(scheduler, "admitted_from", None)
        if admitted is None:  # a plain vLLM scheduler holds nobody back
            return tuple(ids), (), total, 0
        visible = {r.request_id for r in admitted} - {r.request_id for r in scheduler.running}
        waiting = tuple(i for i in ids if i in visible)
        held_back = tuple(i for i in ids if i not in visible)
        return waiting, held_back, len(waiting), total - len(waiting)

    def _held_blocks(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the blocks of each running request; unchanged ones are the same objects."""
        known, self._kv_blocks = self._kv_blocks, {}
        for request in self._scheduler.running:
            request_id = request.request_id
            blocks = self._scheduler.kv_cache_manager.get_blocks(request_id).blocks[0]
            held = known.get(request_id, ())
            # A request's table only grows, except when it is preempted and comes back.
            if len(held) != len(blocks) or (held and held[-1] != blocks[-1].block_id):
                held = tuple(block.block_id for block in blocks)
            self._kv_blocks[request_id] = held
        return tuple(self._kv_blocks.items())

    def _complete(self, pending: _Pending, outputs: Any, model_done: float) -> StepRecord:
        """Add to the record what is known only once the step's tokens are back."""
        new_tokens: dict[str, tuple[int, ...]] = {}
        finished: list[tuple[str, str]] = []
        for engine_core_outputs in outputs.values():
            for output in engine_core_outputs.outputs:
                new_tokens[output.request_id] = tuple(output.new_token_ids)
                if output.finish_reason is not None:
                    finished.append((output.request_id, str(output.finish_reason)))
        aborted, self.aborted = self.aborted, []
        return replace(
            pending.record,
            scheduled=tuple(
                s._replace(new_token_ids=new_tokens.get(s.request_id, ()))
                for s in pending.record.scheduled
            ),
            finished=tuple(finished),
            aborted=tuple(aborted),
            model_seconds=model_done - pending.scheduled_at,
        )


def _phase_of(scheduled: tuple[Scheduled, ...]) -> str:
    phases = {s.phase for s in scheduled}
    if not phases:
        return EMPTY
    return phases.pop() if len(phases) == 1 else MIXED
