"""Plays the engine core for a real scheduler class, with no engine and no model.

Driver calls schedule(), lets the TokenOracle run the step and feeds update_from_output(), at once
or with steps in flight. run_until_stalled() is the watchdog that names a deadlock.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tests.scheduler.factory import AnyTokenGrammar, grant_grammar, make_request, make_scheduler
from tests.scheduler.oracle import TokenOracle

__all__ = ["Driver", "Stall", "Step", "make_request", "make_scheduler", "run_until_stalled"]

MAX_STEPS = 20_000
"""Longer than any run in these tests; a run that reaches it is stuck."""


def waiting_requests(scheduler: Scheduler) -> Iterator[Request]:
    """All not running requests, in the order in which vLLM would look at them (fcfs).

    vLLM 0.29 keeps blocked and skipped requests in `skipped_waiting`, 0.32 those that hold KV in
    `kv_holding_waiting`; both are looked at before `waiting`.
    """
    for name in ("skipped_waiting", "kv_holding_waiting"):
        yield from getattr(scheduler, name, ())
    yield from scheduler.waiting


def is_ready(request: Request) -> bool:
    """Whether a waiting request could be admitted as far as it is itself concerned."""
    if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return isinstance(request.structured_output_request.grammar, AnyTokenGrammar)
    if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
        return False
    return request.num_stale_output_tokens == 0 or request.drop_stale_output


def is_prefill(request: Request) -> bool:
    """The phase of a running request, from its counts BEFORE the step.

    Prefill while tokens other than the last are uncomputed: prompt tokens, or outputs that a
    resumed request computes again. Placeholders stand for tokens in flight (async).
    """
    return request.num_computed_tokens < max(
        request.num_prompt_tokens, request.num_tokens + request.num_output_placeholders - 1
    )


@dataclass
class Step:
    """What one schedule() call was given and what it made of it."""

    index: int
    running: list[str]
    """Before the step, in queue order."""
    running_prefills: set[str]
    """Those of `running` that were mid-prefill before the step."""
    ready: list[str]
    """Waiting requests that could be admitted, in vLLM's order for the policy."""
    paused: PauseState
    in_flight: int
    """Non-empty earlier steps whose output the scheduler had not seen."""
    output: SchedulerOutput
    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    prefills: list[str] = field(default_factory=list)
    decodes: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.output.num_scheduled_tokens

    @property
    def runnable(self) -> bool:
        """Whether vLLM's own scheduler would have had something to try."""
        if self.paused == PauseState.PAUSED_ALL:
            return False
        return bool(self.running) or (self.paused == PauseState.UNPAUSED and bool(self.ready))

    @property
    def wasted(self) -> bool:
        """Nothing scheduled, although there was work and no output to wait for."""
        return self.empty and self.runnable and not self.in_flight


class Driver:
    """Plays the engine core for one scheduler, with `depth` steps in flight (0: sync).

    depth 1 is the engine's batch queue of 2, async scheduling as vLLM runs it. `watchers` are
    called with (driver, step) after each schedule(), before the step is executed.
    """

    def __init__(self, scheduler: Scheduler, depth: int = 0) -> None:
        self.scheduler = scheduler
        self.depth = depth
        kv_cache_config = scheduler.kv_cache_config
        self.oracle = TokenOracle(kv_cache_config.num_blocks, scheduler.block_size)
        self.watchers: list[Callable[[Driver, Step], None]] = []
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.requests: dict[str, Request] = {}
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finish_reasons: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.steps = 0
        self.wasted_steps = 0
        """Empty steps with work to run and nothing in flight to wait for."""
        self.throttle_prefills = False
        """What the engine core tells schedule(); data parallelism may ask to defer prefills."""
        self._grammar_due: dict[str, tuple[int, bool]] = {}

    # What users do

    def add(
        self, request_id: str, prompt: int | list[int], max_tokens: int = 8, **kwargs: Any
    ) -> Request:
        """Make and add a request.

        `grammar_delay=k` blocks it for k steps on its grammar, which with `grammar_error=True`
        then fails to compile. Other keywords go to make_request().
        """
        grammar_delay = kwargs.pop("grammar_delay", None)
        grammar_error = kwargs.pop("grammar_error", False)
        kwargs.setdefault("arrival_time", float(len(self.requests)))
        request = make_request(
            request_id,
            prompt,
            max_tokens,
            block_size=self.scheduler.block_size,
            grammar=grammar_delay is not None,
            **kwargs,
        )
        self.scheduler.add_request(request)
        self.requests[request_id] = request
        self.prompts[request_id] = list(request.prompt_token_ids)
        self.outputs[request_id] = []
        if grammar_delay is not None:
            self._grammar_due[request_id] = (self.steps + grammar_delay, grammar_error)
        return request

    def abort(self, request_id: str) -> None:
        """The client went away."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.aborted.add(request_id)
        self._grammar_due.pop(request_id, None)

    def reset(self, running: bool) -> bool:
        """Reset the prefix cache, with `running` also preempt all; the old KV is then gone."""
        done = self.scheduler.reset_prefix_cache(reset_running_requests=running)
        if done:
            self.oracle.poison()
        return done

    def pause(self, state: PauseState) -> None:
        """PauseState.UNPAUSED, PAUSED_NEW (running requests only) or PAUSED_ALL."""
        self.scheduler.set_pause_state(state)

    # What the engine core does

    @property
    def unfinished(self) -> list[str]:
        """Ids of requests neither finished nor aborted, in order of arrival."""
        return [
            req_id
            for req_id in self.requests
            if req_id not in self.finish_reasons and req_id not in self.aborted
        ]

    @property
    def done(self) -> bool:
        """Nothing left to do, and the worker has been told of each finished request."""
        running_steps = any(output.num_scheduled_tokens for output, _ in self.in_flight)
        return not (self.unfinished or running_steps or self.scheduler.finished_req_ids)

    def step(self) -> Step:
        """Schedule and execute one step; take in the output of the one `depth` steps back."""
        self._grant_due_grammars()
        step = self._schedule()
        for watcher in self.watchers:
            watcher(self, step)
        self.in_flight.append((step.output, self.oracle.execute(step.output)))
        if len(self.in_flight) > self.depth:
            self._update(*self.in_flight.popleft())
        self.steps += 1
        self.wasted_steps += step.wasted
        return step

    def run(self, max_steps: int = MAX_STEPS) -> list[Step]:
        """Step until all is done. Raises AssertionError after `max_steps`."""
        steps = []
        while not self.done:
            assert len(steps) < max_steps, f"unfinished after {max_steps}: {self.unfinished}"
            steps.append(self.step())
        return steps

    def run_until_decoding(self, *request_ids: str, max_steps: int = 100) -> None:
        """Step until each of `request_ids` has given its first token."""
        for _ in range(max_steps):
            if all(self.outputs[req_id] for req_id in request_ids):
                return
            self.step()
        raise AssertionError(f"no first token of all {request_ids} in {max_steps} steps")

    def _grant_due_grammars(self) -> None:
        for req_id, (due, error) in list(self._grammar_due.items()):
            if due <= self.steps:
                del self._grammar_due[req_id]
                grant_grammar(self.requests[req_id], error)

    def _schedule(self) -> Step:
        scheduler = self.scheduler
        running = list(scheduler.running)
        ready = [request for request in waiting_requests(scheduler) if is_ready(request)]
        if scheduler.policy.value == "priority":
            ready.sort()
        before = {
            "index": self.steps,
            "running": [request.request_id for request in running],
            "running_prefills": {r.request_id for r in running if is_prefill(r)},
            "ready": [request.request_id for request in ready],
            "paused": scheduler.pause_state,
            "in_flight": sum(bool(output.num_scheduled_tokens) for output, _ in self.in_flight),
        }
        # Positional, as the engine core passes it.
        output = scheduler.schedule(self.throttle_prefills)
        step = Step(**before, output=output)
        was_running = set(step.running)
        for req_id in output.num_scheduled_tokens:
            if req_id not in was_running:
                step.admitted.append(req_id)
            if req_id not in was_running or req_id in step.running_prefills:
                step.prefills.append(req_id)
            else:
                step.decodes.append(req_id)
        now_running = {request.request_id for request in scheduler.running}
        step.preempted = [req_id for req_id in step.running if req_id not in now_running]
        return step

    def _update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for core_outputs in self.scheduler.update_from_output(output, result).values():
            for core_output in core_outputs.outputs:
                self.outputs[core_output.request_id] += core_output.new_token_ids
                if core_output.finish_reason is not None:
                    self.finish_reasons[core_output.request_id] = str(core_output.finish_reason)


@dataclass
class Stall:
    """An endless loop of empty steps, with what it is made of."""

    first_step: int
    empty_steps: int
    head: str
    """The request that waits in front."""
    hidden: list[str]
    """Running requests that get no step."""
    blocks_needed: int
    blocks_free: int

    @property
    def cycle(self) -> str:
        """The loop in words, each arrow a cause."""
        hidden = ", ".join(self.hidden) or "nobody"
        return (
            f"prefill {self.head} waiting -> hide decodes ({hidden}) -> no KV space "
            f"({self.head} needs {self.blocks_needed} blocks, {self.blocks_free} free) -> "
            f"schedule nothing -> decodes never run, KV never freed -> "
            f"prefill {self.head} waiting"
        )


def run_until_stalled(
    driver: Driver, max_empty_steps: int = 20, max_steps: int = MAX_STEPS
) -> Stall | None:
    """Run; None if all finished, a Stall after `max_empty_steps` empty steps that changed nothing.

    Empty steps with nothing in flight that leave queues, counts and free blocks as they were can
    only repeat: schedule() is given the same again. Raises AssertionError after `max_steps`.
    """
    unchanged, last = 0, None
    for _ in range(max_steps):
        if driver.done:
            return None
        step = driver.step()
        state = _fingerprint(driver.scheduler)
        unchanged = unchanged + 1 if step.wasted and state == last else int(step.wasted)
        last = state
        if unchanged >= max_empty_steps:
            return _describe_stall(driver, step, unchanged)
    raise AssertionError(f"neither finished nor stalled after {max_steps} steps")


def _fingerprint(scheduler: Scheduler) -> tuple:
    return (
        [(r.request_id, r.num_computed_tokens, r.num_tokens) for r in scheduler.running],
        [(r.request_id, r.status) for r in waiting_requests(scheduler)],
        scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
    )


def _describe_stall(driver: Driver, step: Step, unchanged: int) -> Stall:
    head = driver.requests[step.ready[0]] if step.ready else None
    return Stall(
        first_step=step.index - unchanged + 1,
        empty_steps=unchanged,
        head=head.request_id if head else "(none)",
        hidden=[req_id for req_id in step.running if req_id not in step.running_prefills],
        blocks_needed=-(-head.num_tokens // driver.scheduler.block_size) if head else 0,
        blocks_free=driver.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
    )
