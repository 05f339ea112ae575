"""What must hold after every step of a run, as small checks that a Driver calls.

    driver.watchers += watchers_for(driver.scheduler)
    driver.run()
    check_finished(driver)

Each check is a function or object called with (driver, step) after schedule() and raises
AssertionError. None uses the package's own classification of requests: Step's is independent.
"""

from collections import Counter
from collections.abc import Callable

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    KVAdmissionScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from tests.scheduler.harness import MAX_STEPS, Driver, Step, waiting_requests
from tests.scheduler.oracle import expected_output

MAX_EMPTY_IN_A_ROW = 1


def check_nothing_lost(driver: Driver, step: Step) -> None:
    """Every unfinished request is in exactly one queue, and no queue holds another."""
    scheduler = driver.scheduler
    queued = Counter(request.request_id for request in scheduler.running)
    queued.update(request.request_id for request in waiting_requests(scheduler))
    assert queued == Counter(scheduler.requests.keys()), "a request is lost or doubled"
    assert set(queued) == set(driver.unfinished)
    assert not getattr(scheduler, "holdback_queue", ()), "held back beyond the step"


def check_admission_order(driver: Driver, step: Step) -> None:
    """Whoever is admitted stood in front: FIFO, or the order of the priority policy."""
    assert step.admitted == step.ready[: len(step.admitted)], (
        f"admitted {step.admitted}, ready {step.ready}"
    )
    if step.paused != PauseState.UNPAUSED:
        assert not step.admitted, "admitted while paused"
    assert step.paused != PauseState.PAUSED_ALL or step.empty, "scheduled while paused"


def check_capacity(driver: Driver, step: Step) -> None:
    """No more requests hold a slot of the runner than max_num_seqs."""
    scheduler = driver.scheduler
    slots = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
    assert slots <= scheduler.scheduler_config.max_num_seqs


def check_preemption_victims(driver: Driver, step: Step) -> None:
    """vLLM tells the runner of each preemption, and (fcfs) preempts the newest first.

    Or the newest decode, in a step that max_consecutive_prefills takes from a prefill in
    progress: vLLM does not see that one.
    """
    assert set(step.preempted) <= (step.output.preempted_req_ids or set())
    if driver.scheduler.policy.value == "fcfs" and step.preempted:
        count = len(step.preempted)
        decodes = [req_id for req_id in step.running if req_id not in step.running_prefills]
        assert step.preempted in (step.running[-count:], decodes[-count:]), (
            f"preempted {step.preempted} of {step.running}"
        )


class RunningOrder:
    """The running queue stays in the order of admission, oldest first."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def __call__(self, driver: Driver, step: Step) -> None:
        gone = set(step.admitted) | set(step.preempted)
        self.order = [req_id for req_id in self.order if req_id not in gone] + step.admitted
        running = [request.request_id for request in driver.scheduler.running]
        still = set(running)
        self.order = [req_id for req_id in self.order if req_id in still]
        assert running == self.order, f"running {running}, oldest first {self.order}"


class Progress:
    """No more than one empty step in a row while there is work that could run.

    A step is excused while the output of an earlier one is in flight (async): all requests may
    be waiting for it. So is one that preempted: vLLM itself ends a step there when the request
    it was about to run is the victim.
    """

    def __init__(self) -> None:
        self.empty_in_a_row = 0

    def __call__(self, driver: Driver, step: Step) -> None:
        if step.wasted and not step.preempted:
            self.empty_in_a_row += 1
        elif not step.in_flight:
            self.empty_in_a_row = 0
        assert self.empty_in_a_row <= MAX_EMPTY_IN_A_ROW, (
            f"{self.empty_in_a_row} empty steps, running {step.running}, ready {step.ready}"
        )


def check_one_admission(driver: Driver, step: Step) -> None:
    """At most one request enters a step."""
    assert len(step.admitted) <= 1, f"admitted {step.admitted}"


def check_adapters(driver: Driver, step: Step) -> None:
    """Running requests, hidden ones included, use no more adapters than the worker has slots."""
    scheduler = driver.scheduler
    if scheduler.lora_config is None:
        return
    adapters = {r.lora_request.lora_int_id for r in scheduler.running if r.lora_request}
    assert len(adapters) <= scheduler.lora_config.max_loras, f"adapters {adapters}"


def check_pure_batch(driver: Driver, step: Step) -> None:
    """One prefill, or decodes of one token each."""
    assert len(step.prefills) <= 1, f"prefills {step.prefills}"
    assert not (step.prefills and step.decodes), f"{step.prefills} mixed with {step.decodes}"
    counts = step.output.num_scheduled_tokens
    assert all(counts[req_id] == 1 for req_id in step.decodes), f"decodes {counts}"


class BoundedStarvation:
    """The two limits of pacing hold: prefill steps, and padded prefill tokens, while decodes wait.

    Decodes that wait for KV blocks and could not run in a step of their own do not count.
    """

    def __init__(self, max_steps: int | None, max_tokens: int | None) -> None:
        self.max_steps = max_steps or MAX_STEPS
        self.max_tokens = max_tokens or float("inf")
        self.steps = self.tokens = 0

    def __call__(self, driver: Driver, step: Step) -> None:
        held = {request.request_id for request in driver.scheduler.held_decodes}
        decodes_wait = set(step.running) - step.running_prefills - held
        if step.prefills and decodes_wait:
            buckets = driver.scheduler.neuron_config.num_batched_tokens_buckets
            tokens = sum(step.output.num_scheduled_tokens.values())
            self.steps += 1
            self.tokens += min(b for b in buckets if b >= tokens)
        elif not step.empty:
            self.steps = self.tokens = 0
        assert self.steps <= self.max_steps, f"{sorted(decodes_wait)} waited {self.steps} steps"
        assert self.tokens <= self.max_tokens, f"{sorted(decodes_wait)} waited {self.tokens} tokens"


def check_padding(driver: Driver, step: Step) -> None:
    """Prefills padded to the smallest bucket that fits, decodes not at all, both recorded apart."""
    buckets = driver.scheduler.num_batched_tokens_buckets
    actual, padded = step.output.num_scheduled_tokens, step.output.num_scheduled_tokens_padded
    expected = {req_id: actual[req_id] for req_id in step.decodes}
    for req_id in step.prefills:
        expected[req_id] = min(b for b in buckets if b >= actual[req_id])
    assert padded == expected, f"actual {actual}, padded {padded}, expected {expected}"


def check_no_preemption(driver: Driver, step: Step) -> None:
    """The KV bound leaves nothing to preempt."""
    assert not step.preempted, f"preempted {step.preempted} under the KV bound"


def watchers_for(scheduler: Scheduler) -> list[Callable[[Driver, Step], None]]:
    """Return the checks of all that the class of `scheduler` promises."""
    watchers = [
        check_nothing_lost,
        check_admission_order,
        check_capacity,
        check_preemption_victims,
        RunningOrder(),
        Progress(),
    ]
    for promise, checks in (
        (HoldbackScheduler, [check_one_admission, check_adapters]),
        (SeparatedScheduler, [check_pure_batch]),
        (PaddedScheduler, [check_padding]),
        (KVAdmissionScheduler, [check_no_preemption]),
    ):
        if isinstance(scheduler, promise):
            watchers += checks
    if config := getattr(scheduler, "neuron_config", None):
        limits = config.max_consecutive_prefills, config.max_decode_stall_tokens
        if any(limits):
            watchers.append(BoundedStarvation(*limits))
    return watchers


def check_finished(driver: Driver) -> None:
    """At the end: nothing is left, all blocks are free, and every token is the right one."""
    scheduler = driver.scheduler
    assert driver.done and not scheduler.requests
    assert not scheduler.running and not list(waiting_requests(scheduler))
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == scheduler.kv_cache_config.num_blocks - 1
    assert not driver.oracle.tokens, "the runner was not told of all that finished"
    for req_id, output in driver.outputs.items():
        assert output == expected_output(driver.prompts[req_id], len(output)), req_id
        if driver.finish_reasons.get(req_id) in ("stop", "length"):
            check_length(driver, req_id)


def check_length(driver: Driver, req_id: str) -> None:
    """A finished request stopped at its stop token, max_tokens or max_model_len, not elsewhere."""
    request, output = driver.requests[req_id], driver.outputs[req_id]
    stops = request.sampling_params.stop_token_ids or []
    room = driver.scheduler.max_model_len - len(driver.prompts[req_id])
    assert not set(output[:-1]) & set(stops), f"{req_id} went on after a stop token"
    if output[-1] not in stops:
        assert len(output) == min(request.max_tokens, room), f"{req_id}: {len(output)} tokens"
