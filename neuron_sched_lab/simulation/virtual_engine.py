"""VirtualEngine: what vLLM's engine core does with a scheduler, on a virtual clock.

`schedule()` and `update_from_output()` are the scheduler's own, the requests are vLLM's. Only the
device is missing: a CostModel says how long a step takes, every request gets one made-up token
where a model would have sampled one, and the clock is moved instead of waited for.

Time passes in steps: a request that arrives during a step is added before the next one, and the
step's tokens are there at its end. Adding takes no time unless the cost model says so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ..settings.environment import prepare_environment

prepare_environment()

from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402

from ..engine.standstill import MAX_EMPTY_STEPS  # noqa: E402
from ..scheduler.padding import get_scheduled_prefills  # noqa: E402
from ..trace.records import DECODE, EMPTY, MIXED, PREFILL, RequestInfo  # noqa: E402
from ..trace.run_log import StepRun  # noqa: E402
from ..workloads.request import FILLER_TOKEN  # noqa: E402
from .bare_scheduler import make_request  # noqa: E402
from .fast_forward import FastForward  # noqa: E402
from .virtual_run import VirtualRun, get_finished  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler

    from ..workloads.workload import Workload
    from .cost_model import CostModel

EMPTY_STEP_SECONDS = 1e-3
"""How long a step takes that schedules nothing: the engine's own work."""

TOKEN = [FILLER_TOKEN]
"""The token that each request gets in a step. All share the list, as vLLM copies the number."""

NO_TOKEN: list[int] = []


class VirtualEngine(VirtualRun):
    """Runs one workload through one scheduler.

    Args:
        workload: who arrives when.
        scheduler: fresh; see `bare_scheduler.make_scheduler`.
        cost_model: how long steps take.
        skip_ahead: whether decode steps that are alike are advanced in one go; see
            `fast_forward`.
        keep_records: whether a StepRecord is kept of each step, as a Lab does.

    Attributes:
        refused: requests that the engine or the scheduler would not take, with the reason.
        num_scheduled_steps: steps for which `schedule()` was called; the others were advanced.
        stalled: True if the scheduler stopped scheduling although requests were left.
    """

    def __init__(
        self,
        workload: Workload,
        scheduler: Scheduler,
        cost_model: CostModel,
        *,
        skip_ahead: bool = True,
        keep_records: bool = True,
    ) -> None:
        super().__init__(workload, scheduler, cost_model, keep_records=keep_records)
        self.refused: dict[str, str] = {}
        self.num_scheduled_steps = 0
        self.stalled = False
        self._request_seconds: float = getattr(cost_model, "request_seconds", 0.0)
        self._hash_block_size = (
            scheduler.block_size if scheduler.cache_config.enable_prefix_caching else None
        )
        self._num_empty_steps = 0
        self.fast_forward = FastForward(self) if skip_ahead else None

    def run(self, max_steps: int | None = None) -> None:
        """Run until every request has ended, the scheduler stalls, or `max_steps` were made."""
        with _no_garbage_collection():
            while not self.stalled and (max_steps is None or self.log.num_steps < max_steps):
                self._add_arrivals()
                if not self.scheduler.requests:
                    if not self._arrivals:
                        break
                    self.clock = self._arrivals.next_seconds
                elif self.fast_forward is None or not self.fast_forward.advance():
                    self._step()
        if self.recorder is not None:
            self.recorder.detach()

    def _add_arrivals(self) -> None:
        while (due := self._arrivals.pop_due(self.clock)) is not None:
            self._add(due.seconds, due.request_index)
            self.clock += self._request_seconds

    def _add(self, arrival: float, index: int) -> None:
        request = self.workload.requests[index]
        try:
            if request.num_prompt_tokens >= self.scheduler.max_model_len:
                # vLLM refuses it before the scheduler sees it.
                raise ValueError(
                    f"request {request.request_id!r}: a prompt of {request.num_prompt_tokens} "
                    f"tokens leaves no room within max_model_len = {self.scheduler.max_model_len}"
                )
            vllm_request = make_request(
                request.request_id,
                self.workload.prompt_token_ids(index),
                request.num_output_tokens,
                hash_block_size=self._hash_block_size,
                arrival_time=arrival,
            )
            self.scheduler.add_request(vllm_request)
        except ValueError as error:
            self.refused[request.request_id] = str(error)
            self.log.num_refused += 1
            self._arrivals.release_followers(request.request_id, arrival)
            return
        if self.fast_forward is not None:
            self.fast_forward.note_request(vllm_request)
            self.fast_forward.steadiness.note_change()
        self.log.add_request(request.request_id, arrival, request.num_prompt_tokens)
        self.trace.requests[request.request_id] = RequestInfo(
            request_id=request.request_id,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.num_output_tokens,
            arrived_before_step=self.log.num_steps + 1,
            prompt=request.prompt,
        )

    def _step(self) -> None:
        """Make one step as the engine does: schedule, run, update."""
        scheduler, start = self.scheduler, self.clock
        output = scheduler.schedule()
        self.num_scheduled_steps += 1
        step = self._describe(output)
        self.clock = end = start + step.seconds
        for new_request in output.scheduled_new_reqs:
            self.log.first_scheduled[self.log.index[new_request.req_id]] = start
        num_running, num_waiting = len(scheduler.running), self.num_waiting
        kv_used = self.kv_blocks_used
        if self.recorder is not None:
            self.recorder.step_seconds = end - start
        token_ids, finished = self._answer(output, step.phase)
        self.log.add_run(
            StepRun(
                start=start,
                num_steps=1,
                phase=step.phase,
                num_tokens=output.total_num_scheduled_tokens,
                num_padded_tokens=step.num_padded_tokens,
                num_rows=len(output.num_scheduled_tokens),
                row_bucket=step.row_bucket,
                num_running=num_running,
                num_waiting=num_waiting,
                num_preempted=len(output.preempted_req_ids or ()),
                token_offset=len(self.log.token_rows),
            ),
            (end,),
            (kv_used,),
            token_ids,
        )
        self.end_requests(finished)
        if self.fast_forward is not None and not finished:
            self.fast_forward.steadiness.note_step(step.phase)
        self._num_empty_steps = self._num_empty_steps + 1 if step.phase == EMPTY else 0
        self.stalled = self._num_empty_steps >= MAX_EMPTY_STEPS

    def _describe(self, output: SchedulerOutput) -> _Step:
        """Return what the step is and what it costs."""
        num_tokens = output.num_scheduled_tokens
        if not num_tokens:
            return _Step(EMPTY, EMPTY_STEP_SECONDS, 0, 0)
        prefills = _get_prefills(self.scheduler, output)
        cached = output.scheduled_cached_reqs
        if not prefills:
            bucket = self.decode_bucket(len(num_tokens))
            seconds = self.decode_seconds(bucket, max(cached.num_computed_tokens) + 1)
            return _Step(DECODE, seconds, bucket, bucket)
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        padded = getattr(output, "num_scheduled_tokens_padded", None) or num_tokens
        seconds = 0.0
        for request_id in prefills:
            seconds += self.prefill_seconds(padded[request_id], computed.pop(request_id))
        if computed:
            # A device that runs both phases in one graph would read the weights once; what that
            # saves is not known, so a mixed step costs the sum of its parts.
            seconds += self.decode_seconds(
                self.decode_bucket(len(computed)), max(computed.values()) + 1
            )
        phase = MIXED if computed else PREFILL
        return _Step(phase, seconds, len(num_tokens), sum(padded.values()))

    def _answer(self, output: SchedulerOutput, phase: str) -> tuple[list[str], list[str]]:
        """Sample for the step; return who got a token, and whom it ended."""
        requests = self.scheduler.requests
        ids = list(output.num_scheduled_tokens)
        if phase == DECODE:
            token_ids, sampled = ids, [TOKEN] * len(ids)
        else:
            token_ids = [i for i in ids if not requests[i].is_prefill_chunk]
            sampled = [NO_TOKEN if requests[i].is_prefill_chunk else TOKEN for i in ids]
        index = dict(zip(ids, range(len(ids)), strict=True))
        outputs = self.scheduler.update_from_output(
            output, ModelRunnerOutput(ids, index, sampled_token_ids=sampled)
        )
        return token_ids, [request_id for request_id, _ in get_finished(outputs)]

    def end_requests(self, request_ids: list[str]) -> None:
        """Note that these requests ended now, and let those arrive who waited for them."""
        super().end_requests(request_ids)
        if request_ids and self.fast_forward is not None:
            self.fast_forward.steadiness.note_change()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: steps make no cycles, and each search walks through all prompts."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Step(NamedTuple):
    """A step as the clock and the log see it; see RunLog for the words."""

    phase: str
    seconds: float
    row_bucket: int
    num_padded_tokens: int


def _get_prefills(scheduler: Scheduler, output: SchedulerOutput) -> list[str]:
    """Return the ids of the requests that the step prefills."""
    # Our schedulers have just computed them.
    prefills: list[str] | None = getattr(scheduler, "scheduled_prefills", None)
    return get_scheduled_prefills(output, scheduler.requests) if prefills is None else prefills
