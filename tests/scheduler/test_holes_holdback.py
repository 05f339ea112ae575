"""Holes of lesson 2, holding requests back: B3, B6, B10, B11 and B14."""

import pytest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from tests.scheduler.harness import Driver
from tests.scheduler.holes import (
    CHAIN,
    PURE,
    SEED,
    drive,
    finish,
    grammar_arrives_among_decodes,
    seed_fault_of_0_29,
)


class TestB3SideQueue:
    """Structured-output requests wait in skipped_waiting, which the seed does not hold back."""

    @staticmethod
    def grammar_and_plain_wait(scheduler_cls) -> Driver:
        driver = drive(scheduler_cls)
        driver.add("G", 20, grammar_delay=0)
        driver.add("P", 20)
        return driver

    @seed_fault_of_0_29
    def test_seed_mixes_it_into_a_decode_step(self):
        driver = grammar_arrives_among_decodes(SEED)
        with pytest.raises(RuntimeError, match=r"Mixed prefill \(1\) and decode \(3\)"):
            driver.run()

    @seed_fault_of_0_29
    def test_seed_runs_two_prefills_in_one_step_undetected(self):
        assert self.grammar_and_plain_wait(SEED).step().prefills == ["G", "P"]

    @pytest.mark.parametrize("cls", PURE)
    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_mended(self, cls, policy):
        driver = grammar_arrives_among_decodes(cls)
        assert driver.step().prefills == ["G"]
        finish(driver)
        driver = self.grammar_and_plain_wait(cls)
        assert [driver.step().prefills, driver.step().prefills] == [["G"], ["P"]]
        finish(driver)

    @pytest.mark.parametrize("cls", CHAIN)
    def test_a_grammar_that_is_not_ready_blocks_nobody(self, cls):
        driver = drive(cls)
        driver.add("G", 20, grammar_delay=30)
        driver.add("P", 20, max_tokens=10)
        driver.run_until_decoding("P", max_steps=3)
        finish(driver)


class TestB6PausedNew:
    """PAUSED_NEW lets running requests finish; they must not hide behind one not admitted."""

    @staticmethod
    def paused_with_one_waiting(scheduler_cls) -> Driver:
        driver = drive(scheduler_cls)
        driver.add("A", 20, max_tokens=8)
        driver.run_until_decoding("A")
        driver.add("B", 20, max_tokens=8)
        driver.pause(PauseState.PAUSED_NEW)
        return driver

    def test_seed_gives_running_requests_nothing(self):
        driver = self.paused_with_one_waiting(SEED)
        assert all(driver.step().empty for _ in range(30))
        assert driver.unfinished == ["A", "B"]

    @pytest.mark.parametrize("cls", CHAIN)
    def test_mended(self, cls):
        driver = self.paused_with_one_waiting(cls)
        for _ in range(10):
            driver.step()
        assert driver.unfinished == ["B"]
        assert driver.outputs["B"] == []
        assert driver.wasted_steps == 0
        driver.pause(PauseState.UNPAUSED)
        finish(driver)


class CountingQueue(FCFSRequestQueue):
    """Counts the requests that are moved or looked at."""

    touched = 0

    def append(self, request):
        CountingQueue.touched += 1
        super().append(request)

    def appendleft(self, request):
        CountingQueue.touched += 1
        super().appendleft(request)

    def popleft(self):
        CountingQueue.touched += 1
        return super().popleft()

    def remove(self, request):
        CountingQueue.touched += len(self)
        super().remove(request)

    def __iter__(self):
        for request in super().__iter__():
            CountingQueue.touched += 1
            yield request


class TestB10WorkPerStep:
    """Holding back 1,000 requests must not cost more than holding back one."""

    @staticmethod
    def touched_in_a_decode_step(scheduler_cls) -> int:
        driver = drive(scheduler_cls, max_num_seqs=1)
        driver.add("A", 20)
        driver.run_until_decoding("A")
        driver.scheduler.waiting = CountingQueue()
        for i in range(1000):
            driver.add(f"r{i}", 5)
        CountingQueue.touched = 0
        driver.scheduler.schedule(False)
        assert len(driver.scheduler.waiting) == 1000
        return CountingQueue.touched

    def test_seed_moves_all_there_and_back(self):
        assert self.touched_in_a_decode_step(SEED) == 2000

    @pytest.mark.parametrize("cls", CHAIN)
    def test_mended(self, cls):
        assert self.touched_in_a_decode_step(cls) <= 2


class TestB11StreamingSessions:
    """A session that waits for input keeps its slot in the model runner."""

    @staticmethod
    def slots_taken(scheduler_cls) -> int:
        driver = drive(scheduler_cls, max_num_seqs=2)
        driver.watchers.clear()  # a session has "finished" and is still there
        driver.add("session", 20, max_tokens=2, resumable=True)
        while driver.scheduler.num_waiting_for_streaming_input == 0:
            driver.step()
        driver.add("A", 20)
        driver.add("B", 20)
        most = 0
        for _ in range(6):
            driver.step()
            most = max(most, len(driver.scheduler.running) + 1)
        return most

    def test_seed_overfills_the_runner(self):
        assert self.slots_taken(SEED) == 3

    @pytest.mark.parametrize("cls", [Scheduler, *CHAIN])
    def test_mended(self, cls):
        assert self.slots_taken(cls) == 2


class TestB14PriorityPolicy:
    """A priority queue is a heap; only vLLM's queue API works on both kinds."""

    def test_seed_needs_a_deque(self):
        driver = drive(SEED, policy="priority")
        driver.add("A", 20)
        with pytest.raises(AttributeError):
            driver.step()

    @pytest.mark.parametrize("cls", CHAIN)
    def test_mended(self, cls):
        driver = drive(cls, policy="priority")
        for name, priority in (("low", 2), ("high", 0), ("mid", 1), ("high too", 0)):
            driver.add(name, 20, priority=priority)
        admitted = [driver.step().admitted for _ in range(4)]
        assert admitted == [["high"], ["high too"], ["mid"], ["low"]]
        finish(driver)
