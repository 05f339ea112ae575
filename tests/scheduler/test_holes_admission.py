"""Holes of lesson 5, the KV bound and the deadlock: B1 and B2."""

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from neuron_sched_lab.scheduler import (
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from tests.scheduler.harness import Driver, run_until_stalled
from tests.scheduler.holes import MAX_EMPTY_STEPS, SEED, drive, finish
from tests.scheduler.invariants import check_finished, check_no_preemption


class UnguardedPaddedScheduler(PaddedScheduler):
    """The stage before admission control, without the guard that the seed lacks too."""

    progress_guard = False


class UnguardedAsyncPaddedScheduler(UnguardedPaddedScheduler, AsyncScheduler):
    pass


class UnguardedKVAdmissionScheduler(KVAdmissionScheduler):
    progress_guard = False


class TestB1NullBlock:
    """num_blocks / blocks per request counts block 0, which nobody can use."""

    @staticmethod
    def two_long_requests(scheduler_cls) -> Driver:
        # 32 blocks, 16 a request: two by division, one and a bit in truth.
        driver = drive(
            scheduler_cls,
            max_model_len=512,
            max_num_batched_tokens=512,
            block_size=32,
            num_blocks=32,
        )
        driver.add("A", 500, max_tokens=4)
        driver.add("B", 500, max_tokens=4)
        return driver

    def test_seed_stalls(self):
        driver = self.two_long_requests(SEED)
        assert driver.scheduler._max_kv_concurrent == 2
        stall = run_until_stalled(driver, MAX_EMPTY_STEPS)
        assert (stall.head, stall.hidden) == ("B", ["A"])
        assert (stall.blocks_needed, stall.blocks_free) == (16, 15)

    @pytest.mark.parametrize("cls", [KVAdmissionScheduler, NeuronScheduler, NeuronAsyncScheduler])
    def test_mended(self, cls):
        driver = self.two_long_requests(cls)
        assert driver.scheduler._max_kv_concurrent == 1
        assert run_until_stalled(driver, MAX_EMPTY_STEPS) is None
        assert driver.wasted_steps == 0
        check_finished(driver)


class TestB2Deadlock:
    """A prefill that does not fit hides the decodes that would make room for it."""

    @staticmethod
    def more_than_fits(scheduler_cls) -> Driver:
        # 20 blocks; each request needs 5 at first and 9 in the end, max_model_len would be 32.
        driver = drive(scheduler_cls, max_model_len=512, num_blocks=21, max_num_seqs=8)
        for name in "ABCDEF":
            driver.add(name, 70, max_tokens=70)
        return driver

    def test_seed_switches_its_bound_off_in_a_small_cache_and_stalls(self):
        driver = self.more_than_fits(SEED)
        assert driver.scheduler._max_kv_concurrent == driver.scheduler.max_num_seqs
        assert run_until_stalled(driver, MAX_EMPTY_STEPS) is not None

    @pytest.mark.parametrize("cls", [UnguardedPaddedScheduler, UnguardedAsyncPaddedScheduler])
    def test_stage_before_admission_control_deadlocks(self, cls):
        driver = self.more_than_fits(cls)
        stall = run_until_stalled(driver, MAX_EMPTY_STEPS)
        # Detected at once, not at some time-out.
        assert driver.steps == stall.first_step + MAX_EMPTY_STEPS < 50
        assert (stall.head, stall.hidden) == ("E", ["A", "B", "C", "D"])
        assert (stall.blocks_needed, stall.blocks_free) == (5, 0)
        assert stall.cycle == (
            "prefill E waiting -> hide decodes (A, B, C, D) -> no KV space (E needs 5 blocks, "
            "0 free) -> schedule nothing -> decodes never run, KV never freed -> "
            "prefill E waiting"
        )

    @pytest.mark.parametrize(
        "cls",
        [
            KVAdmissionScheduler,
            UnguardedKVAdmissionScheduler,
            NeuronScheduler,
            NeuronAsyncScheduler,
        ],
    )
    def test_absent_with_admission_control(self, cls):
        driver = self.more_than_fits(cls)
        assert run_until_stalled(driver, MAX_EMPTY_STEPS) is None
        assert driver.wasted_steps == 0
        check_finished(driver)

    @pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler])
    def test_mended_without_any_bound(self, cls):
        driver = self.more_than_fits(cls)
        assert run_until_stalled(driver, MAX_EMPTY_STEPS) is None
        check_finished(driver)

    @pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler])
    def test_decodes_follow_a_refusal_whoever_waits_in_front_then(self, cls):
        driver = self.more_than_fits(cls)
        driver.run_until_decoding("A", "B", "C", "D")
        assert driver.step().wasted  # E was tried
        driver.abort("E")
        assert driver.step().decodes == ["A", "B", "C", "D"]

    @pytest.mark.parametrize("cls", [NeuronScheduler, NeuronAsyncScheduler])
    def test_mended_with_a_bound_that_is_too_loose(self, cls):
        driver = self.more_than_fits(cls)
        driver.watchers.remove(check_no_preemption)
        driver.scheduler._max_kv_concurrent = 8
        assert run_until_stalled(driver, MAX_EMPTY_STEPS) is None
        check_finished(driver)

    def test_seed_waits_for_ever_for_a_request_that_can_never_fit(self):
        driver = drive(SEED, num_blocks=11)
        driver.add("A", 200, max_tokens=4)
        stall = run_until_stalled(driver, MAX_EMPTY_STEPS)
        assert (stall.head, stall.blocks_needed, stall.blocks_free) == ("A", 13, 10)

    @pytest.mark.parametrize("cls", [KVAdmissionScheduler, NeuronAsyncScheduler])
    def test_a_request_that_can_never_fit_is_refused(self, cls):
        driver = drive(cls, num_blocks=11)
        with pytest.raises(ValueError, match=r"10"):
            driver.add("A", 150, max_tokens=11)
        assert not driver.scheduler.requests
        driver.add("B", 150, max_tokens=10)  # 160 tokens, 10 blocks: fits to the last slot
        finish(driver)
