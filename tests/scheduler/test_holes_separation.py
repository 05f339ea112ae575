"""Holes of lesson 3, keeping the phases apart: B4, B5, B9 and B12."""

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import (
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from tests.scheduler.harness import Driver, run_until_stalled
from tests.scheduler.holes import (
    CHAIN,
    MAX_EMPTY_STEPS,
    PURE,
    SEED,
    drive,
    free_blocks,
    queues,
)
from tests.scheduler.invariants import check_finished


class TestB4ResumedRequests:
    """After a preemption the outputs are computed again, which is prefill work, not decode."""

    @staticmethod
    def reset_in_mid_decode(scheduler_cls) -> Driver:
        driver = drive(
            scheduler_cls,
            max_num_batched_tokens=32,
            neuron_config={"num_batched_tokens_buckets": [16, 32]},
        )
        driver.add("A", 20, max_tokens=60)
        driver.add("B", 20, max_tokens=60)
        while len(driver.outputs["B"]) < 45:
            driver.step()
        driver.reset(running=True)
        return driver

    def test_seed_takes_the_rest_for_decodes(self):
        driver = self.reset_in_mid_decode(SEED)
        steps = driver.run()
        chunks = [
            step.output.num_scheduled_tokens_padded
            for step in steps
            if len(step.prefills) == 2 or (step.prefills and step.decodes)
        ]
        assert chunks, "never two phases or two prefills in a step"
        assert any(set(padded.values()) - {16, 32} for padded in chunks), "all sizes in the ladder"

    @pytest.mark.parametrize("cls", PURE)
    def test_mended(self, cls):
        driver = self.reset_in_mid_decode(cls)
        steps = driver.run()
        assert max(sum(step.output.num_scheduled_tokens.values()) for step in steps) == 32
        check_finished(driver)


class TestB5PreemptionVictim:
    """vLLM preempts the last of the running queue, which must be the newest."""

    @staticmethod
    def three_that_outgrow_the_cache(scheduler_cls) -> Driver:
        driver = drive(scheduler_cls, max_model_len=512, num_blocks=11)
        for name in "ABC":
            driver.add(name, 40, max_tokens=60)
        return driver

    @staticmethod
    def victims(driver: Driver) -> list[str]:
        return [req_id for step in driver.run() for req_id in step.preempted]

    def test_seed_reverses_the_queue_and_preempts_the_oldest(self):
        driver = self.three_that_outgrow_the_cache(SEED)
        driver.run_until_decoding("A", "B", "C")
        assert queues(driver)[0] == ["C", "B", "A"]
        victims = []
        while not victims:
            victims = driver.step().preempted
        assert victims == ["A"]
        assert run_until_stalled(driver, MAX_EMPTY_STEPS).head == "A"

    def test_vllm_preempts_the_newest(self):
        assert self.victims(self.three_that_outgrow_the_cache(Scheduler))[:2] == ["C", "B"]

    @pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler])
    def test_mended(self, cls):
        driver = self.three_that_outgrow_the_cache(cls)
        driver.run_until_decoding("A", "B", "C")
        assert queues(driver)[0] == ["A", "B", "C"]
        assert self.victims(driver)[:2] == ["C", "B"]
        check_finished(driver)

    @pytest.mark.parametrize("cls", [KVAdmissionScheduler, NeuronScheduler, NeuronAsyncScheduler])
    def test_nobody_is_preempted_under_the_kv_bound(self, cls):
        driver = self.three_that_outgrow_the_cache(cls)
        assert self.victims(driver) == []
        check_finished(driver)


class TestB9Starvation:
    """Prefill priority starves decodes for as long as prefills arrive."""

    @staticmethod
    def tokens_after_200_busy_steps(scheduler_cls, neuron_config=None) -> int:
        driver = drive(scheduler_cls, neuron_config=neuron_config)
        driver.add("A", 20, max_tokens=50)
        for i in range(200):
            driver.add(f"short{i}", 20, max_tokens=1)
            driver.step()
        return len(driver.outputs["A"])

    def test_seed_starves_a_decode(self):
        assert self.tokens_after_200_busy_steps(SEED) <= 2

    def test_vllm_does_not(self):
        assert self.tokens_after_200_busy_steps(Scheduler) == 50

    def test_off_by_default_as_in_the_seed(self):
        assert self.tokens_after_200_busy_steps(NeuronScheduler) <= 2

    @pytest.mark.parametrize("limit", [1, 3])
    def test_bounded_on_request(self, limit):
        tokens = self.tokens_after_200_busy_steps(
            NeuronScheduler, {"max_consecutive_prefills": limit}
        )
        assert tokens >= min(50, 200 // (limit + 1) - 1)


class TestB12WatermarkAndThrottle:
    """What vLLM decides by looking at the running requests must count the hidden ones."""

    @staticmethod
    def admitted_above_the_watermark(scheduler_cls) -> tuple[int, int]:
        """(running, free blocks) once nobody else gets in; 30 of 100 blocks should stay free."""
        driver = drive(
            scheduler_cls, max_model_len=1024, num_blocks=100, max_num_seqs=8, watermark=0.3,
            max_num_batched_tokens=512,
        )  # fmt: skip
        if hasattr(driver.scheduler, "_max_kv_concurrent"):
            driver.scheduler._max_kv_concurrent = 8  # the watermark is the only limit here
        for name in "ABCDEF":
            driver.add(name, 310, max_tokens=100)
        for _ in range(9):  # enough for all to be tried, too few to grow a block
            driver.step()
        return len(driver.scheduler.running), free_blocks(driver)

    @staticmethod
    def throttled_step(scheduler_cls) -> list[str]:
        driver = drive(scheduler_cls)
        driver.add("A", 20)
        driver.run_until_decoding("A")
        driver.add("B", 20)
        driver.throttle_prefills = True
        return list(driver.step().output.num_scheduled_tokens)

    def test_seed_fills_the_cache(self):
        assert self.admitted_above_the_watermark(SEED) == (4, 19)

    @pytest.mark.parametrize("cls", [Scheduler, *CHAIN])
    def test_watermark_kept(self, cls):
        assert self.admitted_above_the_watermark(cls) == (3, 39)

    def test_seed_never_defers_a_prefill(self):
        assert self.throttled_step(SEED) == ["B"]

    @pytest.mark.parametrize("cls", [Scheduler, *CHAIN])
    def test_prefill_deferred(self, cls):
        assert self.throttled_step(cls) == ["A"]

    @pytest.mark.parametrize("cls", CHAIN)
    def test_no_deferral_while_prefills_pile_up(self, cls):
        """As in vLLM: if the last free step left requests waiting, throttling is off."""
        driver = drive(cls)
        driver.add("A", 20, max_tokens=20)
        driver.run_until_decoding("A")
        driver.add("B", 20)
        driver.add("C", 20)
        admitted = [driver.step().admitted]
        driver.throttle_prefills = True
        admitted.append(driver.step().admitted)
        driver.add("D", 20)
        admitted.append(driver.step().admitted)
        assert admitted == [["B"], ["C"], []]
