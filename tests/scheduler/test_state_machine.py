"""The three states, the arrows between them, and why counts before the step decide (hole B13)."""

from vllm.v1.core.sched.interface import PauseState

from neuron_sched_lab.scheduler import NeuronAsyncScheduler, NeuronScheduler, SchedulerState
from tests.scheduler import seed_literal
from tests.scheduler.factory import make_scheduler
from tests.scheduler.harness import Driver
from tests.scheduler.holes import SEED, drive, finish, seed_fault_of_0_29

IDLE, PREFILL, DECODE = SchedulerState


class PostIncrementScheduler(NeuronScheduler):
    """Reads the state from the requests, whose counts schedule() has already advanced."""

    def _update_state(self, scheduler_output) -> None:
        requests = [self.requests[req_id] for req_id in scheduler_output.num_scheduled_tokens]
        prefill = any(r.num_computed_tokens < r.num_prompt_tokens for r in requests)
        if requests:
            self._state = PREFILL if prefill else DECODE


def states_of(cls, prompt: int, steps: int) -> list[SchedulerState]:
    driver = Driver(make_scheduler(cls, max_num_batched_tokens=32))
    driver.add("A", prompt, max_tokens=4)
    states = []
    for _ in range(steps):
        driver.step()
        states.append(driver.scheduler.state)
    return states


def test_last_chunk_of_a_prefill_is_prefill():
    assert states_of(NeuronScheduler, 80, 4) == [PREFILL, PREFILL, PREFILL, DECODE]


def test_counts_after_the_step_call_the_last_chunk_decode():
    assert states_of(PostIncrementScheduler, 80, 4) == [PREFILL, PREFILL, DECODE, DECODE]


def test_a_prompt_of_one_chunk_is_never_seen_as_prefill_after_the_step():
    assert states_of(NeuronScheduler, 20, 2) == [PREFILL, DECODE]
    assert states_of(PostIncrementScheduler, 20, 2) == [DECODE, DECODE]


def test_every_transition_is_recorded_with_step_and_cause():
    driver = Driver(make_scheduler(NeuronScheduler, max_num_batched_tokens=32))
    driver.add("A", 50, max_tokens=6)  # steps 1 and 2: two chunks
    for _ in range(4):  # 3 and 4: decode
        driver.step()
    driver.add("B", 20, max_tokens=2)  # step 5
    driver.run()  # 6 to 8: decode
    arrows = [(t.step, t.before, t.after) for t in driver.scheduler.transitions]
    assert arrows == [
        (1, IDLE, PREFILL),
        (3, PREFILL, DECODE),
        (5, DECODE, PREFILL),
        (6, PREFILL, DECODE),
        (8, DECODE, IDLE),
    ]
    assert [t.cause for t in driver.scheduler.transitions] == [
        "prefill in waiting queue",
        "prefill completes",
        "decode has capacity and prefill is waiting",
        "prefill completes",
        "all decode complete and no prefill waiting",
    ]


def test_a_resumed_request_is_prefill_again():
    driver = Driver(make_scheduler(NeuronScheduler, max_num_batched_tokens=32))
    driver.add("A", 20, max_tokens=60)
    while len(driver.outputs["A"]) < 40:
        driver.step()
    driver.reset(running=True)
    states = []
    for _ in range(3):  # 60 tokens to compute again, in chunks of 32
        driver.step()
        states.append(driver.scheduler.state)
    assert states == [PREFILL, PREFILL, DECODE]


def test_an_abort_of_the_last_request_leads_to_idle():
    driver = Driver(make_scheduler(NeuronScheduler))
    driver.add("A", 20)
    driver.run_until_decoding("A")
    driver.abort("A")
    assert driver.scheduler.state == IDLE
    assert driver.scheduler.transitions[-1].cause == "last request aborted"


def test_async_states():
    driver = Driver(make_scheduler(NeuronAsyncScheduler, async_scheduling=True), depth=1)
    driver.add("A", 20, max_tokens=3)
    states = []
    while not driver.done:
        driver.step()
        states.append(driver.scheduler.state)
    assert states[:3] == [PREFILL, DECODE, DECODE]
    assert states[-1] == IDLE


def test_an_empty_step_changes_nothing():
    driver = Driver(make_scheduler(NeuronScheduler))
    driver.add("A", 20)
    driver.step()
    driver.pause(PauseState.PAUSED_ALL)
    assert driver.step().empty
    assert driver.scheduler.state == PREFILL


class TestB13Idle:
    """IDLE means that no request is left, and is reached when the last one ends."""

    @staticmethod
    def one_blocked_request_left(scheduler_cls) -> Driver:
        driver = drive(scheduler_cls)
        driver.add("A", 20, max_tokens=2)
        driver.add("G", 20, grammar_delay=10)
        while "A" in driver.unfinished:
            driver.step()
        driver.step()
        return driver

    @staticmethod
    def after_the_last_token(scheduler_cls) -> Driver:
        driver = drive(scheduler_cls)
        driver.add("A", 20, max_tokens=3)
        while driver.unfinished:
            driver.step()
        return driver

    @seed_fault_of_0_29
    def test_seed_is_idle_with_a_request_left(self):
        driver = self.one_blocked_request_left(SEED)
        assert driver.unfinished == ["G"]
        assert driver.scheduler._state == seed_literal.SchedulerState.IDLE

    def test_seed_is_active_with_none_left(self):
        driver = self.after_the_last_token(SEED)
        assert driver.scheduler._state == seed_literal.SchedulerState.ACTIVE_DECODE

    def test_mended(self):
        driver = self.one_blocked_request_left(NeuronScheduler)
        assert driver.scheduler.state == SchedulerState.ACTIVE_DECODE
        finish(driver)
        assert driver.scheduler.state == SchedulerState.IDLE

        driver = self.after_the_last_token(NeuronScheduler)
        assert driver.scheduler.state == SchedulerState.IDLE
