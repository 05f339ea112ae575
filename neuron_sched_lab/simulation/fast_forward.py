"""FastForward: a run of decode steps, advanced in one go, exactly as if each had been scheduled.

While nobody is admitted and nobody ends, every decode step does the same: one token for each
running request, and a KV block for those whose last block is full. Such a run is advanced by its
length at once. The KV blocks are still taken from vLLM's KV-cache manager, in the order in which
the steps would have; the requests that the last step of a run ends are ended by the
scheduler's own `update_from_output()`. What is left out is `schedule()`, and `update_from_output()`
for requests to which nothing happens.

A run ends before the next arrival, and before a step for which the KV cache has too few free
blocks (whom to preempt is for the scheduler to decide); it does not start while any prompt is
being prefilled or anybody could be admitted. A step that is not part of a run is scheduled.

It holds for vLLM's Scheduler and for ours, in the synchronous engine; for classes of your own see
`steadiness`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter, sub
from typing import TYPE_CHECKING, TypeAlias

from ..settings.environment import prepare_environment

prepare_environment()

from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402

from ..scheduler.admission import KVAdmissionScheduler  # noqa: E402
from ..scheduler.holdback import HoldbackScheduler  # noqa: E402
from ..scheduler.kv_policies import KVState, is_safe_state  # noqa: E402
from ..scheduler.neuron import NeuronScheduler, SchedulerState  # noqa: E402
from ..scheduler.padding import PaddedScheduler  # noqa: E402
from ..scheduler.separation import SeparatedScheduler  # noqa: E402
from ..trace.records import DECODE  # noqa: E402
from ..trace.run_log import StepRun  # noqa: E402
from ..workloads.request import FILLER_TOKEN  # noqa: E402
from .simulation_recorder import DecodeRun  # noqa: E402
from .steadiness import Steadiness  # noqa: E402
from .virtual_run import VirtualRun, get_finished  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.request import Request


# For map() over all running requests, in every run: faster than a comprehension.
_IS_PREFILL_CHUNK = attrgetter("is_prefill_chunk")
_NUM_COMPUTED = attrgetter("num_computed_tokens")
_REQUEST_ID = attrgetter("request_id")

_NO_OUTPUT = SchedulerOutput.make_empty()


_BlockStep: TypeAlias = tuple[int, int, int]
"""A step of a run in which a request needs the KV-cache manager: (step, place, number of new
blocks). Steps count from 0, the first of the run; the place is the request's, in the running queue;
the number is 1 if it needs a block, or 0 if it only fills one, whose hash is then cached. A plain
tuple: each run has a few, and they are sorted."""


class FastForward:
    """Advances the decode steps of a VirtualRun.

    Attributes:
        steadiness: tells whether the next steps are alike.
        why_not: why it does not advance at all, or None.
    """

    def __init__(self, engine: VirtualRun) -> None:
        scheduler = engine.scheduler
        self.steadiness = Steadiness(scheduler)
        self.why_not = self.steadiness.why_not
        self._engine = engine
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._group = self._manager.coordinator.single_type_managers[0]
        self._longest: dict[str, int] = {}
        # Made once: update_from_output() only reads it, and it has many fields.
        self._output_of_last_step = SchedulerOutput.make_empty()
        self._caches_prefixes = scheduler.cache_config.enable_prefix_caching
        # Asked in every run, and slow for classes with an abstract base.
        self._holds_back = isinstance(scheduler, HoldbackScheduler)
        self._separates = isinstance(scheduler, SeparatedScheduler)
        self._pads = isinstance(scheduler, PaddedScheduler)
        self._has_state = isinstance(scheduler, NeuronScheduler)
        self._lends = (
            isinstance(scheduler, KVAdmissionScheduler)
            and scheduler.neuron_config.kv_admission == "banker"
        )

    def note_request(self, request: Request) -> None:
        """Take note of a request before it is added."""
        most = min(request.num_prompt_tokens + request.max_tokens, self._scheduler.max_model_len)
        # The last token generated is not computed.
        self._longest[request.request_id] = most - 1

    def advance(self) -> bool:
        """Advance as many decode steps as are alike; return False if the next one is not."""
        scheduler = self._scheduler
        running = scheduler.running
        num_waiting = self._engine.num_waiting
        if (
            self.why_not is not None
            or not running
            or len(running) > scheduler.max_num_scheduled_tokens
            or any(map(_IS_PREFILL_CHUNK, running))
            or self.steadiness.may_admit(num_waiting)
        ):
            return False
        ids = list(map(_REQUEST_ID, running))
        computed = list(map(_NUM_COMPUTED, running))
        left = self._steps_left(ids, computed)
        fewest = min(left)
        row_bucket = self._engine.decode_bucket(len(running))
        ends = self._ends(row_bucket, max(computed) + 1, fewest)
        block_steps = self._block_steps(computed, len(ends))
        num_steps = self._num_steps_that_fit(block_steps, len(ends))
        if num_steps == 0:
            return False
        if num_steps < len(ends):
            del ends[num_steps:]
            block_steps = [b for b in block_steps if b[0] < num_steps]
        ending = []
        if num_steps == fewest:
            ending = [r for r, steps in zip(running, left, strict=True) if steps == fewest]
        run = DecodeRun(
            requests=list(running),
            ids=ids,
            computed=computed,
            start=self._engine.clock,
            ends=ends,
            kv_used=self._kv_used(block_steps, num_steps),
            row_bucket=row_bucket,
            num_waiting=num_waiting,
            ending=ending,
        )
        self._advance_requests(run)
        if block_steps:
            self._allocate(run, block_steps)
        self._pass_steps(run)
        if self._engine.recorder is not None:
            self._engine.recorder.record_run(run)
        self._log(run)
        self._end(run)
        return True

    # How long is the run?

    def _steps_left(self, ids: Sequence[str], computed: Sequence[int]) -> list[int]:
        """Return how many tokens each request still generates."""
        return list(map(sub, map(self._longest.__getitem__, ids), computed))

    def _ends(self, row_bucket: int, context: int, most_steps: int) -> list[float]:
        """Return the ends of the steps up to the first at which somebody arrives."""
        engine = self._engine
        decode_seconds, next_arrival = engine.decode_seconds, engine.next_arrival
        ends = []
        now = engine.clock
        for step_context in range(context, context + most_steps):
            now += decode_seconds(row_bucket, step_context)
            ends.append(now)
            if now >= next_arrival:
                break
        return ends

    def _block_steps(self, computed: Sequence[int], num_steps: int) -> list[_BlockStep]:
        """Return where the KV-cache manager is needed, in the order in which it would be asked."""
        block_size = self._scheduler.block_size
        block_steps = [
            (step, place, 1)
            for place, num_computed in enumerate(computed)
            if (step := -num_computed % block_size) < num_steps
        ]
        if num_steps > block_size:
            block_steps += [
                (later, place, 1)
                for step, place, _ in block_steps
                for later in range(step + block_size, num_steps, block_size)
            ]
        if self._caches_prefixes:
            block_steps += [
                (step, place, 0)
                for place, num_computed in enumerate(computed)
                for step in range((-num_computed - 1) % block_size, num_steps, block_size)
            ]
        block_steps.sort()
        return block_steps

    def _num_steps_that_fit(self, block_steps: Sequence[_BlockStep], num_steps: int) -> int:
        """Return how many steps find all the blocks that they need."""
        num_free = self._manager.block_pool.get_num_free_blocks()
        if len(block_steps) > num_free:
            for step, _, num_new_blocks in block_steps:
                num_free -= num_new_blocks
                if num_free < 0:
                    num_steps = step
                    break
        if self._lends and block_steps:
            num_steps = self._num_steps_that_may_be_lent(block_steps, num_steps)
        return num_steps

    def _num_steps_that_may_be_lent(self, block_steps: Sequence[_BlockStep], num_steps: int) -> int:
        """Return how many steps the banker policy allows.

        It holds a decode back if lending blocks to all would not be safe. A state that is safe
        after more was lent was safe before, so checking the last step of a run is enough.
        """
        state = self._scheduler.get_kv_state()
        places = {holder.request_id: i for i, holder in enumerate(state.holders)}
        running = self._scheduler.running

        def is_safe_after(steps: int) -> bool:
            holders = list(state.holders)
            lent = [place for step, place, new in block_steps if step < steps and new]
            for place in lent:
                i = places[running[place].request_id]
                holder = holders[i]
                holders[i] = holder._replace(allocated=holder.allocated + 1, want=0)
            return is_safe_state(KVState(state.num_blocks, state.num_free - len(lent), holders))

        if is_safe_after(num_steps):
            return num_steps
        return bisect_left(range(1, num_steps), True, key=lambda steps: not is_safe_after(steps))

    # Carry it out

    def _kv_used(self, block_steps: Sequence[_BlockStep], num_steps: int) -> list[int]:
        """Return the KV blocks in use in each step."""
        new_blocks = [0] * num_steps
        new_blocks[0] = self._engine.kv_blocks_used
        for step, _, num_new_blocks in block_steps:
            new_blocks[step] += num_new_blocks
        return list(accumulate(new_blocks))

    def _advance_requests(self, run: DecodeRun) -> None:
        """Give each request its tokens; the one that ends it is left to update_from_output()."""
        num_steps = len(run.ends)
        tokens = [FILLER_TOKEN] * num_steps
        for request in run.requests:
            # As schedule() and request.append_output_token_ids() do.
            request.num_computed_tokens += num_steps
            request._output_token_ids += tokens
            request._all_token_ids += tokens
        for request in run.ending:
            del request._output_token_ids[-1], request._all_token_ids[-1]
        if self._caches_prefixes:
            for request in run.requests:
                request.update_block_hashes()

    def _allocate(self, run: DecodeRun, block_steps: Sequence[_BlockStep]) -> None:
        """Take the blocks from the KV-cache manager, in the order in which the steps would."""
        ids = run.ids
        if not self._caches_prefixes:
            # The same as allocate_new_blocks() for each, but the pool is asked only once.
            tables = self._group.req_to_blocks
            blocks = self._manager.block_pool.get_new_blocks(len(block_steps))
            for (_, place, _), block in zip(block_steps, blocks, strict=True):
                tables[ids[place]].append(block)
            return
        # The same as allocate_slots() for one token of a running request.
        for step, place, _ in block_steps:
            num_tokens = run.computed[place] + step + 1
            self._group.allocate_new_blocks(ids[place], num_tokens, num_tokens)
            self._manager.coordinator.cache_blocks(run.requests[place], num_tokens)

    def _pass_steps(self, run: DecodeRun) -> None:
        """Bring the scheduler's own attributes to where the last schedule() would have."""
        scheduler = self._scheduler
        scheduler.current_step += 1
        scheduler.finished_req_ids = set()
        scheduler.prefill_capacity_bound = bool(scheduler.waiting)
        if not scheduler.use_v2_model_runner:
            scheduler.prev_step_scheduled_req_ids = set(run.ids)
        if self._holds_back:
            scheduler.admitted_from.clear()
        if self._separates:
            scheduler._prefill = None
            scheduler.hidden_reqs, scheduler.held_decodes = [], []
            scheduler._num_consecutive_prefills = scheduler._num_stall_tokens = 0
        if self._pads:
            scheduler.scheduled_prefills = []
        if self._has_state:
            _enter_decode(scheduler)
            run.first_cause = scheduler.last_transition.cause
        scheduler.current_step += len(run.ends) - 1
        if self._has_state and len(run.ends) > 1:
            _enter_decode(scheduler)

    def _log(self, run: DecodeRun) -> None:
        num_rows = len(run.requests)
        self._engine.clock = run.ends[-1]
        log = self._engine.log
        log.add_run(
            StepRun(
                start=run.start,
                num_steps=len(run.ends),
                phase=DECODE,
                num_tokens=num_rows,
                num_padded_tokens=run.row_bucket,
                num_rows=num_rows,
                row_bucket=run.row_bucket,
                num_running=num_rows,
                num_waiting=run.num_waiting,
                num_preempted=0,
                token_offset=len(log.token_rows),
            ),
            run.ends,
            run.kv_used,
            run.ids,
        )

    def _end(self, run: DecodeRun) -> None:
        """Let the scheduler end the requests that the last step ends."""
        if not run.ending:
            return
        ids = [request.request_id for request in run.ending]
        for request in run.ending:
            request.num_in_flight_tokens += 1  # as schedule() notes it
        output = self._output_of_last_step
        output.num_scheduled_tokens = dict.fromkeys(ids, 1)
        output.total_num_scheduled_tokens = len(ids)
        index = {request_id: i for i, request_id in enumerate(ids)}
        outputs = self._scheduler.update_from_output(
            output, ModelRunnerOutput(ids, index, sampled_token_ids=[[FILLER_TOKEN]] * len(ids))
        )
        finished = get_finished(outputs)
        if self._engine.recorder is not None:
            self._engine.recorder.note_finished(finished)
        self._engine.end_requests([request_id for request_id, _ in finished])


def _enter_decode(scheduler: NeuronScheduler) -> None:
    # The output is only used to explain a prefill.
    decode = SchedulerState.ACTIVE_DECODE
    scheduler._enter(decode, scheduler._explain(decode, _NO_OUTPUT))
