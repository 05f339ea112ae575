"""Run: a scheduler class at work in a scenario, with no engine and no model.

The self-checks run two classes side by side in the same scenario. Some mistakes in a
learner's class would crash a Recorder, so what a step did is read from vLLM's objects here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from ...scheduler import compat
from ...scheduler.holdback import is_prefill
from ...simulation.bare_scheduler import make_request, make_scheduler

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    from .scenario import Scenario

NUM_TOKEN_IDS = 251
NOT_READY = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


@dataclass
class Step:
    """What one call of `schedule()` was given and what it made of it, as plain data.

    Attributes:
        number: counts from 1.
        events: what users did before it, in words.
        waiting: ids before the step, in queue order.
        running: ids before the step, in queue order.
        prefilling: those of `running` that were reading a prompt.
        remaining: tokens that each request had still to compute before the step.
        computed: tokens of each request that were in the KV cache before the step.
        lost: by request id, the last step in which it lost its KV blocks.
        waited: for how many prefill steps and tokens decodes had waited, if the class counts it.
        state_before: the scheduler's state before the step, or None if it has none.
        answers: what can_schedule() returned in the step.
        returned: by the name of a method, what it returned, as plain data.
        shown_waiting: ids in the queue that vLLM's own `schedule()` found, in queue order.
        shown_running: ids of the running requests that it found, sorted.
        scheduled: tokens by request id, as in `SchedulerOutput.num_scheduled_tokens`.
        padded: the same of `num_scheduled_tokens_padded`, or None.
        advanced: tokens by which the scheduler moved each request's account on.
        preempted: running before the step, waiting after it.
        waiting_after: ids after the step, in queue order.
        running_after: ids after the step, in queue order.
        in_queues: how often each unfinished request stands in a queue after the step.
        empty_in_a_row: steps in a row, this one included, that ran nothing although they could.
        state: the scheduler's state right after `schedule()`, or None if it has none.
        extra: attributes of the scheduler that the check asked for.
        scheduler: the live object, for its reasons.
    """

    number: int
    events: tuple[str, ...]
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    prefilling: frozenset[str]
    remaining: dict[str, int]
    scheduler: Scheduler
    computed: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    waited: tuple[int, int] | None = None
    state_before: str | None = None
    answers: list[Any] = field(default_factory=list)
    returned: dict[str, Any] = field(default_factory=dict)
    shown_waiting: tuple[str, ...] = ()
    shown_running: tuple[str, ...] = ()
    scheduled: dict[str, int] = field(default_factory=dict)
    padded: dict[str, int] | None = None
    advanced: dict[str, int] = field(default_factory=dict)
    preempted: tuple[str, ...] = ()
    waiting_after: tuple[str, ...] = ()
    running_after: tuple[str, ...] = ()
    in_queues: dict[str, int] = field(default_factory=dict)
    empty_in_a_row: int = 0
    state: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def started(self) -> tuple[str, ...]:
        """Scheduled and not running before."""
        return tuple(r for r in self.scheduled if r not in self.running)

    @property
    def prefills(self) -> tuple[str, ...]:
        """Scheduled to read a prompt, or tokens that were lost."""
        return tuple(r for r in self.scheduled if r not in self.running or r in self.prefilling)

    @property
    def decodes(self) -> tuple[str, ...]:
        """Scheduled to write a token."""
        return tuple(r for r in self.scheduled if r in self.running and r not in self.prefilling)


def get_waiting(scheduler: Scheduler) -> Iterator[Request]:
    """Yield the requests that are not running, in the order in which vLLM looks at them."""
    yield from getattr(scheduler, compat.SIDE_QUEUE)
    yield from scheduler.waiting


class Run:
    """One scheduler class at work in one scenario, a step at a time.

    Args:
        cls: the scheduler class. An async one is run as vLLM runs it: a step is scheduled before
            the tokens of the last one are back.
        scenario: what happens to it.
        extra: names of attributes to note after each step.
    """

    def __init__(
        self, cls: type[Scheduler], scenario: Scenario, extra: tuple[str, ...] = ()
    ) -> None:
        self.num_steps = 0
        self._scenario = scenario
        self._extra = extra
        self._depth = int(issubclass(cls, AsyncScheduler))
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._empty_in_a_row = 0
        self._lost: dict[str, int] = {}
        settings = {**scenario.settings, "async_scheduling": bool(self._depth)}
        self.scheduler = make_scheduler(cls, **settings)
        self._watch_what_is_shown()
        self._watch_answers()

    @property
    def done(self) -> bool:
        """Nobody is left, and nobody will come."""
        to_come = any(arrival.step > self.num_steps for arrival in self._scenario.arrivals)
        return not (to_come or self.scheduler.requests)

    def step(self) -> Step:
        """Let users act, schedule a step, and hand it back its tokens."""
        self.num_steps += 1
        self._returned: dict[str, Any] = {}
        step = self._look_before(self._act())
        self._shown, self._answers = ((), ()), step.answers
        output = self.scheduler.schedule(False)
        if output is None:
            raise TypeError("schedule() returned None; return what super().schedule() gave you")
        step.shown_waiting, step.shown_running = self._shown
        self._look_after(step, output)
        self._in_flight.append((output, self._sample(output)))
        if len(self._in_flight) > self._depth:
            outputs = self.scheduler.update_from_output(*self._in_flight.popleft())
            step.returned["update_from_output"] = _describe_outputs(outputs)
        return step

    def _act(self) -> tuple[str, ...]:
        events = []
        for arrival in self._scenario.arrivals:
            if arrival.step == self.num_steps:
                shared = range(arrival.num_shared)
                own = range(arrival.num_shared, arrival.num_prompt_tokens)
                salt = 31 * (1 + int(arrival.request_id[1:]))
                prompt = [7 * i % NUM_TOKEN_IDS for i in shared]
                prompt += [(salt + 7 * i + i * i // 5) % NUM_TOKEN_IDS for i in own]
                request = make_request(
                    arrival.request_id,
                    prompt,
                    arrival.max_tokens,
                    hash_block_size=self.scheduler.block_size,
                )
                words = f"{arrival.request_id} arrived ({arrival.num_prompt_tokens} tokens"
                if arrival.ready_step > self.num_steps:
                    request.status = NOT_READY
                    words += ", not ready"
                self.scheduler.add_request(request)
                events.append(f"{words})")
            elif arrival.ready_step == self.num_steps:
                request = self.scheduler.requests.get(arrival.request_id)
                if request is not None:
                    request.status = RequestStatus.WAITING
                    events.append(f"{arrival.request_id} is ready")
        for abort in self._scenario.aborts:
            if abort.step == self.num_steps and abort.request_id in self.scheduler.requests:
                aborted = self.scheduler.finish_requests(
                    abort.request_id, RequestStatus.FINISHED_ABORTED
                )
                self._returned["finish_requests"] = _describe_requests(aborted)
                events.append(f"{abort.request_id} was aborted")
        return tuple(events)

    def _watch_what_is_shown(self) -> None:
        """Note the queues at the moment at which vLLM's own schedule() begins."""
        kv_cache_manager = self.scheduler.kv_cache_manager
        new_step_starts = kv_cache_manager.new_step_starts

        def note_queues() -> None:
            self._shown = (
                tuple(r.request_id for r in get_waiting(self.scheduler)),
                tuple(sorted(r.request_id for r in self.scheduler.running)),
            )
            new_step_starts()

        kv_cache_manager.new_step_starts = note_queues

    def _watch_answers(self) -> None:
        """Note what can_schedule() answers: None, which counts as no, is a forgotten return."""
        can_schedule = getattr(self.scheduler, "can_schedule", None)
        if can_schedule is None:
            return

        def note_answer(request: Request) -> Any:
            answer = can_schedule(request)
            self._answers.append(answer)
            return answer

        self.scheduler.can_schedule = note_answer

    def _look_before(self, events: tuple[str, ...]) -> Step:
        scheduler = self.scheduler
        self._computed = {r.request_id: r.num_computed_tokens for r in scheduler.requests.values()}
        return Step(
            number=self.num_steps,
            events=events,
            waiting=tuple(r.request_id for r in get_waiting(scheduler)),
            running=tuple(r.request_id for r in scheduler.running),
            prefilling=frozenset(r.request_id for r in scheduler.running if _is_prefilling(r)),
            remaining={
                r.request_id: r.num_tokens + r.num_output_placeholders - r.num_computed_tokens
                for r in scheduler.requests.values()
            },
            scheduler=scheduler,
            computed=self._computed,
            lost=dict(self._lost),
            waited=_get_waited(scheduler),
            state_before=_get_state(scheduler),
            returned=self._returned,
        )

    def _look_after(self, step: Step, output: SchedulerOutput) -> None:
        scheduler = self.scheduler
        step.scheduled = dict(output.num_scheduled_tokens)
        padded = getattr(output, "num_scheduled_tokens_padded", None)
        step.padded = None if padded is None else dict(padded)
        step.waiting_after = tuple(r.request_id for r in get_waiting(scheduler))
        step.running_after = tuple(r.request_id for r in scheduler.running)
        step.preempted = tuple(r for r in step.running if r in step.waiting_after)
        self._lost |= dict.fromkeys(step.preempted, step.number)
        # A request with a prefix hit begins beyond 0.
        begins = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        begins |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        step.advanced = {
            r: scheduler.requests[r].num_computed_tokens - begins.get(r, self._computed[r])
            for r in step.scheduled
            if r in scheduler.requests
        }
        queued = Counter(step.waiting_after + step.running_after)
        step.in_queues = {r: queued[r] for r in {*queued, *scheduler.requests}}
        waits_for_tokens = any(output.num_scheduled_tokens for output, _ in self._in_flight)
        ready = step.running or any(r.status != NOT_READY for r in get_waiting(scheduler))
        could_run = bool(ready) and not waits_for_tokens
        empty = could_run and not step.scheduled and not step.preempted
        self._empty_in_a_row = self._empty_in_a_row + 1 if empty else 0
        step.empty_in_a_row = self._empty_in_a_row
        step.state = _get_state(scheduler)
        step.extra = {name: getattr(scheduler, name, None) for name in self._extra}

    def _sample(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Answer as a model runner would: a token for each request that has read all it has."""
        req_ids = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[req_id] for req_id in req_ids]
        return ModelRunnerOutput(
            req_ids=req_ids,
            req_id_to_index={req_id: i for i, req_id in enumerate(req_ids)},
            sampled_token_ids=[
                [] if r.is_prefill_chunk else [r.num_computed_tokens % NUM_TOKEN_IDS]
                for r in requests
            ],
        )


def _is_prefilling(request: Request) -> bool:
    num_output_tokens = request.num_output_tokens + request.num_output_placeholders
    return is_prefill(request.num_computed_tokens, request.num_prompt_tokens, num_output_tokens)


def _get_state(scheduler: Scheduler) -> str | None:
    state = getattr(scheduler, "state", None)
    return getattr(state, "value", state)


def _get_waited(scheduler: Scheduler) -> tuple[int, int] | None:
    num_prefills = getattr(scheduler, "_num_consecutive_prefills", None)
    return None if num_prefills is None else (num_prefills, scheduler._num_stall_tokens)


def _describe_outputs(outputs: Any) -> Any:
    """Return the new tokens of each request by client, as (id, tokens, why it ended)."""
    if not isinstance(outputs, Mapping):
        return outputs
    return {
        client: [
            (o.request_id, list(o.new_token_ids), o.finish_reason and o.finish_reason.name)
            for o in getattr(found, "outputs", ())
        ]
        for client, found in outputs.items()
    }


def _describe_requests(requests: Any) -> Any:
    if not isinstance(requests, Iterable):
        return requests
    return [getattr(request, "request_id", request) for request in requests]
