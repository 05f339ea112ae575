"""One scheduler and all that can happen to it: what test_stateful.py and nightly.py play with.

Every choice is made by a `pick` function that is given the options. Hypothesis picks so that it can
shrink a failure, the nightly run picks at random; the moves, the checks and the bookkeeping of what
was covered are the same.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    HoldReason,
    KVAdmissionScheduler,
    NeuronScheduler,
)
from neuron_sched_lab.scheduler.compat import HAS_SKIPPED_WAITING
from tests.scheduler.factory import make_request, make_scheduler
from tests.scheduler.harness import MAX_STEPS, Driver, Step, is_prefill, waiting_requests
from tests.scheduler.invariants import (
    Progress,
    check_admission_order,
    check_length,
    watchers_for,
)
from tests.scheduler.oracle import TokenOracle, next_token

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]

VOCAB_PICKED = 7
"""Own tokens are drawn from so few ids that prompts often share a prefix by chance."""

STOP_TOKENS = [3, 5, 8, 13, 21, 34, 55, 89, 144, 233]
"""One in 25 sampled tokens is one of these."""


class SessionOracle(TokenOracle):
    """A TokenOracle that knows streaming sessions: each input starts the request anew."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.sessions: set[str] = set()

    def _take_new(self, output: SchedulerOutput) -> dict[str, int]:
        for new in output.scheduled_new_reqs:
            if new.req_id in self.sessions:
                self.tokens.pop(new.req_id, None)
        return super()._take_new(output)


class SessionDriver(Driver):
    """A Driver that also plays streaming sessions, and checks each token when it comes.

    A session stays when its turn ends, holds its KV blocks, and waits for the next input. The last
    token of a turn was sampled but never computed; vLLM drops it from the context of the next.
    """

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        super().__init__(scheduler, depth)
        self.oracle = SessionOracle(scheduler.kv_cache_config.num_blocks, scheduler.block_size)
        self.contexts: dict[str, list[int]] = {}
        """What the model has read or said so far, by request."""
        self.queued_inputs: dict[str, deque[list[int] | None]] = {}
        """Inputs that came before the turn was over, None for the end of the session."""

    @property
    def sessions(self) -> list[str]:
        """Ids of the sessions that nobody has ended."""
        return [
            req_id
            for req_id in self.unfinished
            if req_id in self.queued_inputs and None not in self.queued_inputs[req_id]
        ]

    def add(self, request_id: str, *args: Any, **kwargs: Any) -> Request:
        request = super().add(request_id, *args, **kwargs)
        self.contexts[request_id] = list(self.prompts[request_id])
        if request.resumable:
            self.queued_inputs[request_id] = deque()
            self.oracle.sessions.add(request_id)
        return request

    def waits_for_input(self, request_id: str) -> bool:
        return self.requests[request_id].status == RequestStatus.WAITING_FOR_STREAMING_REQ

    def feed(self, request_id: str, tokens: list[int]) -> None:
        """The session's next input."""
        self._send(request_id, tokens, resumable=True)
        if self.waits_before_send:
            self.contexts[request_id] += tokens
        else:
            self.queued_inputs[request_id].append(tokens)

    def end_session(self, request_id: str) -> None:
        """The client has no more input; the session ends with its turn."""
        self._send(request_id, [0], resumable=False)
        if self.waits_before_send:
            self.aborted.add(request_id)  # vLLM's word for it
        else:
            self.queued_inputs[request_id].append(None)

    def _send(self, request_id: str, tokens: list[int], *, resumable: bool) -> None:
        self.waits_before_send = self.waits_for_input(request_id)
        session = self.requests[request_id]
        self.scheduler.add_request(
            make_request(
                request_id,
                tokens,
                session.max_tokens,
                block_size=self.scheduler.block_size,
                priority=session.priority,
                arrival_time=session.arrival_time,
                resumable=resumable,
            )
        )

    def _update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for core_outputs in self.scheduler.update_from_output(output, result).values():
            for core_output in core_outputs.outputs:
                req_id = core_output.request_id
                self.outputs[req_id] += core_output.new_token_ids
                self._check_tokens(req_id, core_output.new_token_ids)
                if core_output.finish_reason is not None:
                    self._end_turn(req_id, str(core_output.finish_reason))

    def _check_tokens(self, req_id: str, token_ids: list[int]) -> None:
        context = self.contexts[req_id]
        for token_id in token_ids:
            expected = next_token(np.array(context, dtype=np.int32))
            assert token_id == expected, f"{req_id}: token {token_id}, expected {expected}"
            context.append(token_id)

    def _end_turn(self, req_id: str, reason: str) -> None:
        queued = self.queued_inputs.get(req_id)
        if queued is None or reason == "error" or (queued and queued[0] is None):
            self.finish_reasons[req_id] = reason
            return
        self.contexts[req_id].pop()
        if queued:
            self.contexts[req_id] += queued.popleft()


class ProgressBetweenInputs(Progress):
    """Progress, but a session that waits for its user may keep its seat and blocks from others."""

    def __call__(self, driver: Driver, step: Step) -> None:
        if not any(map(driver.waits_for_input, driver.sessions)):
            super().__call__(driver, step)


class ArrivalOrder:
    """Plain requests start in order of arrival (fcfs). Ids count up, see World._new_id()."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.newest = -1

    def __call__(self, driver: Driver, step: Step) -> None:
        for req_id in step.admitted:
            request = driver.requests[req_id]
            if req_id in self.started or request.resumable or request.structured_output_request:
                continue
            self.started.add(req_id)
            number = int(req_id[1:])
            assert number > self.newest, f"{req_id} started after r{self.newest}"
            self.newest = number


def check_admission_order_but_sessions(driver: Driver, step: Step) -> None:
    """A session that goes on may overtake, and 0.32 lets it finish in a pause for new requests.

    It holds blocks; whoever stands before it may be waiting for just these.
    """
    goes_on = [req_id for req_id in step.admitted if driver.outputs[req_id]]
    if not set(goes_on) & driver.queued_inputs.keys():
        check_admission_order(driver, step)
    elif step.paused != PauseState.UNPAUSED:
        assert step.paused == PauseState.PAUSED_NEW and not HAS_SKIPPED_WAITING


def draw_settings(pick: Pick, cls: type[Scheduler]) -> dict[str, Any]:
    """Pick settings for make_scheduler(), extremes included; one longest request always fits."""
    block_size = pick([4, 8, 16])
    max_model_len = pick([48, 64, 100])
    max_num_seqs = pick([1, 2, 3, 6])
    max_num_batched_tokens = max(pick([8, 16, 32, 50, 128]), max_num_seqs)
    longest_chunk = min(max_num_batched_tokens, max_model_len)
    ladder = sorted({b for b in pick([[], [8, 16, 32, 64], [12]]) if b < longest_chunk})
    neuron_config: dict[str, Any] = {"num_batched_tokens_buckets": [*ladder, longest_chunk]}
    pacing = pick([None, None, "max_consecutive_prefills", "max_decode_stall_tokens"])
    if pacing == "max_consecutive_prefills":
        neuron_config[pacing] = pick([1, 3])
    elif pacing:
        neuron_config[pacing] = longest_chunk + pick([0, 9])
    if issubclass(cls, KVAdmissionScheduler):
        neuron_config["kv_admission"] = pick(["worst_case", "worst_case", "reservation", "banker"])
    blocks_per_request = -(-max_model_len // block_size)
    return {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        # From the least that vLLM starts with to plenty; the seed miscounts exact multiples (B1).
        "num_blocks": int(blocks_per_request * pick([1, 1.5, 2, 2.5, max_num_seqs])) + pick([1, 2]),
        "policy": pick(["fcfs", "fcfs", "priority"]),
        "prefix_caching": pick([False, True]),
        "neuron_config": neuron_config,
        "watermark": pick([0.0, 0.0, 0.1]),
        "reserve_full_isl": pick([True, True, False]),
        "v2_output_form": pick([False, False, True]),
        "async_scheduling": issubclass(cls, AsyncScheduler),
        # vLLM's own classes let others overtake a request whose adapter does not fit.
        "max_loras": pick([None, None, 1, 2]) if issubclass(cls, HoldbackScheduler) else None,
    }


def is_replaced(watcher: object) -> bool:
    """Whether a check needs the form that knows of sessions."""
    return watcher is check_admission_order or isinstance(watcher, Progress)


class World:
    """A scheduler, its users, and a record of what happened in which situation.

    Moves are the public methods without result; each notes itself in `coverage`.

    Attributes:
        coverage: how often each (state, queues, event) was met; `queues` as in describe_queues().
    """

    def __init__(self, cls: type[Scheduler], pick: Pick) -> None:
        self.settings = draw_settings(pick, cls)
        depth = pick([1, 1, 2]) if self.settings["async_scheduling"] else 0
        self.scheduler = make_scheduler(cls, **self.settings)
        self.driver = SessionDriver(self.scheduler, depth)
        self.driver.watchers = [
            *(w for w in watchers_for(self.scheduler) if not is_replaced(w)),
            check_admission_order_but_sessions,
            ProgressBetweenInputs(),
            *([ArrivalOrder()] if self.settings["policy"] == "fcfs" else []),
            self._note_step,
        ]
        self.coverage: Counter[tuple[str, str, str]] = Counter()
        # Not where vLLM itself goes wrong. 0.29 counts tokens in flight as a session's context, and
        # caches a block under a hash that the dropped token is part of; and with no KV bound,
        # sessions between inputs, which are never preempted, can hold all blocks for ever.
        vllm_is_right = not HAS_SKIPPED_WAITING or not (depth or self.settings["prefix_caching"])
        self.has_sessions = vllm_is_right and issubclass(cls, KVAdmissionScheduler)
        self._before = self._situation()

    # What users do

    def arrive(self, pick: Pick) -> None:
        """A request, or three with one prompt (n = 3)."""
        prompt = self._prompt(pick)
        count = pick([1, 1, 1, 3])
        kwargs = self._request_options(pick)
        self._note("n samples arrive" if count > 1 else "request arrives")
        for _ in range(count):
            self.driver.add(self._new_id(), list(prompt), **kwargs)
        self.check()

    def arrive_structured(self, pick: Pick) -> None:
        """A request that waits for its grammar, which may fail to compile."""
        self._note("structured request arrives")
        self.driver.add(
            self._new_id(),
            self._prompt(pick),
            grammar_delay=pick([0, 1, 3, 12]),
            grammar_error=pick([False, False, False, True]),
            **self._request_options(pick),
        )
        self.check()

    def open_session(self, pick: Pick) -> None:
        """A streaming session begins, with input that leaves room for more."""
        self._note("session opens")
        self.driver.add(
            self._new_id(),
            self._prompt(pick)[: self.scheduler.max_model_len // 3],
            max_tokens=pick([1, 2, 5]),
            resumable=True,
            priority=pick([0, 0, 1]),
            stop_token_ids=pick([None, STOP_TOKENS]),
        )
        self.check()

    def feed_session(self, pick: Pick) -> None:
        """A session's next input, in time or before its turn is over; it ends when full."""
        session = pick(self.driver.sessions)
        # vLLM stops a session at max_model_len, but not one whose input alone goes beyond.
        queued = self.driver.queued_inputs[session]
        planned = len(self.driver.contexts[session]) + sum(map(len, queued))
        turns = len(queued) + 2
        max_tokens = self.driver.requests[session].max_tokens
        room = self.scheduler.max_model_len - 1 - planned - turns * max_tokens
        if room < 1:
            self.end_session(pick, session)
            return
        waits = self.driver.waits_for_input(session)
        self._note("session input" if waits else "session input before its turn")
        self.driver.feed(session, self._tokens(pick, min(pick([1, 4, 17]), room)))
        self.check()

    def end_session(self, pick: Pick, session: str | None = None) -> None:
        """A session's client has no more input."""
        self._note("session ends")
        self.driver.end_session(session or pick(self.driver.sessions))
        self.check()

    def abort(self, pick: Pick) -> None:
        """A client goes away; the oldest, the newest or one in between."""
        victims = self.driver.unfinished
        req_id = pick([victims[0], victims[-1], victims[len(victims) // 2]])
        self._note(f"abort, {self._stage(self.driver.requests[req_id])}")
        self.driver.abort(req_id)
        self.check()

    # What the operator does

    def reset(self, pick: Pick) -> None:
        """The prefix cache is reset, in half of the cases with all running requests preempted."""
        running = pick([False, True]) and not self._session_holds_blocks()
        self._note("reset with preemption" if running else "reset")
        self.driver.reset(running)
        self.check()

    def pause_or_go_on(self, pick: Pick) -> None:
        """Pause for new requests or for all, or end the pause."""
        if self.scheduler.pause_state == PauseState.UNPAUSED:
            state = pick([PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
        else:
            state = PauseState.UNPAUSED
        self._note(f"pause: {state.name}")
        self.driver.pause(state)
        self.check()

    def throttle_or_not(self) -> None:
        """Another rank asks to put prefills off, or no longer."""
        self.driver.throttle_prefills = not self.driver.throttle_prefills
        self._note(f"throttle: {self.driver.throttle_prefills}")

    # What the engine does

    def step(self) -> None:
        """One step, checked by every watcher."""
        reasons = len(self.driver.finish_reasons)
        self._before = self._situation()
        waiting = [request.request_id for request in waiting_requests(self.scheduler)]
        admitted = self.driver.step().admitted
        if self.settings["policy"] == "fcfs":
            self._check_nobody_moved([req_id for req_id in waiting if req_id not in admitted])
        for reason in list(self.driver.finish_reasons.values())[reasons:]:
            self._note(f"finish: {reason}", self._before)
        self.check()

    def _check_nobody_moved(self, before: list[str]) -> None:
        """Who waited before the step and still does stands where it stood, also after a refusal."""
        after = [request.request_id for request in waiting_requests(self.scheduler)]
        stayed = set(after) & set(before)
        before, after = ([r for r in ids if r in stayed] for ids in (before, after))
        assert before == after, f"waiting {before}, then {after}"

    def run_dry(self) -> None:
        """Let everything come to its end, and check that nothing is left."""
        self.driver.pause(PauseState.UNPAUSED)
        self.driver.throttle_prefills = False
        for session in self.driver.sessions:
            self.driver.end_session(session)
        for steps in range(MAX_STEPS):
            if self.driver.done:
                break
            assert steps < MAX_STEPS - 1, f"still at work: {self.driver.unfinished}"
            self.step()
        pool = self.scheduler.kv_cache_manager.block_pool
        assert not self.scheduler.requests
        assert not self.scheduler.running and not list(waiting_requests(self.scheduler))
        assert pool.get_num_free_blocks() == self.scheduler.kv_cache_config.num_blocks - 1
        assert not self.driver.oracle.tokens, "the runner was not told of all that finished"
        for req_id, reason in self.driver.finish_reasons.items():
            if reason in {"stop", "length"} and req_id not in self.driver.queued_inputs:
                check_length(self.driver, req_id)

    def check(self) -> None:
        """What holds between two steps, whoever came or went."""
        scheduler = self.scheduler
        queued = Counter(request.request_id for request in scheduler.running)
        queued.update(request.request_id for request in waiting_requests(scheduler))
        assert queued == Counter(scheduler.requests.keys()), "a request is lost or doubled"
        assert set(queued) == set(self.driver.unfinished)
        if isinstance(scheduler, NeuronScheduler) and not scheduler.requests:
            assert scheduler.state.value == "IDLE", "nothing left to do, and not idle"

    # Bookkeeping

    def describe_queues(self) -> str:
        """The queues in letters.

        P, D: running prefill, running decodes; W: waiting; G: waiting for a grammar; R: to be
        resumed; S: session without input; F: output in flight; n, a: paused for new, for all.
        """
        stages = {self._stage(request) for request in self.scheduler.requests.values()}
        letters = "".join(
            letter
            for letter, stage in (
                ("P", "in prefill"),
                ("D", "decoding"),
                ("W", "waiting"),
                ("G", "waiting for grammar"),
                ("R", "preempted"),
                ("S", "between inputs"),
            )
            if stage in stages
        )
        if any(output.num_scheduled_tokens for output, _ in self.driver.in_flight):
            letters += "F"
        return letters + ("", "n", "a")[self.scheduler.pause_state.value]

    def _situation(self) -> tuple[str, str]:
        state = getattr(self.scheduler, "state", None)
        return state.value if state else "no states", self.describe_queues()

    def _note(self, event: str, situation: tuple[str, str] | None = None) -> None:
        state, queues = situation or self._situation()
        self.coverage[state, queues, event] += 1

    def _note_step(self, driver: Driver, step: Step) -> None:
        """Name what a step did, in the situation before it."""
        events = ["step"]
        if step.prefills:
            chunk = "more chunks" if step.prefills[0] in step.running_prefills else "first chunk"
            events.append(f"prefill step, {chunk}")
        elif step.decodes:
            events.append("decode step")
        else:
            events.append("empty step")
        events += ["preemption"] * len(step.preempted)
        reason = getattr(self.scheduler, "hold_reason", None)
        if reason is HoldReason.ADAPTERS_FULL:
            events.append("adapters full")
        hit = {new.req_id: new.num_computed_tokens for new in step.output.scheduled_new_reqs}
        for req_id, num_computed in hit.items():
            if num_computed and req_id not in driver.oracle.tokens:
                full = step.output.num_scheduled_tokens[req_id] <= driver.scheduler.block_size
                events.append("prefix hit, full" if full else "prefix hit, partial")
        for event in events:
            self._note(event, self._before)

    def _stage(self, request: Request) -> str:
        status = request.status
        if status == RequestStatus.RUNNING:
            return "in prefill" if is_prefill(request) else "decoding"
        if status == RequestStatus.PREEMPTED:
            return "preempted"
        if status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return "between inputs"
        if status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return "waiting for grammar"
        return "waiting"

    def _session_holds_blocks(self) -> bool:
        """vLLM refuses to reset with preemption then: it preempts only who runs."""
        return any(
            self.scheduler.kv_cache_manager.get_block_ids(req_id)[0]
            for req_id in self.driver.unfinished
            if req_id in self.driver.queued_inputs
            and self.driver.requests[req_id].status != RequestStatus.RUNNING
        )

    def _new_id(self) -> str:
        return f"r{len(self.driver.requests)}"

    def _prompt(self, pick: Pick) -> list[int]:
        """A prompt whose length is at the edge of a bucket, of a block or of the context."""
        settings = self.settings
        edges = [*settings["neuron_config"]["num_batched_tokens_buckets"], settings["block_size"]]
        lengths = {1, 2, settings["max_model_len"] - 1}
        lengths.update(edge + offset for edge in edges for offset in (-1, 0, 1))
        lengths = [n for n in sorted(lengths) if 0 < n < settings["max_model_len"]]
        length = pick(lengths)
        shared = pick([0, length // 2, length])
        return [i % VOCAB_PICKED for i in range(shared)] + self._tokens(pick, length - shared)

    def _tokens(self, pick: Pick, count: int) -> list[int]:
        first, stride = pick(range(VOCAB_PICKED)), pick(range(1, VOCAB_PICKED))
        return [(first + stride * i) % VOCAB_PICKED for i in range(count)]

    def _request_options(self, pick: Pick) -> dict[str, Any]:
        return {
            "max_tokens": pick([1, 2, 5, 17, self.settings["max_model_len"]]),
            "priority": pick([0, 0, 1, 2]),
            "stop_token_ids": pick([None, STOP_TOKENS]),
            "adapter": pick([None, 1, 2, 3]) if self.settings["max_loras"] else None,
        }
