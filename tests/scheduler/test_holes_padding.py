"""Holes of lesson 4, padding and the purity check: B7 and B8."""

import pytest

from neuron_sched_lab.scheduler import (
    NeuronScheduler,
)
from tests.scheduler.harness import Driver, run_until_stalled
from tests.scheduler.holes import (
    CHAIN,
    MAX_EMPTY_STEPS,
    SEED,
    drive,
    finish,
    free_blocks,
    grammar_arrives_among_decodes,
    queues,
    seed_fault_of_0_29,
)


class MixingScheduler(NeuronScheduler):
    """A subclass with the bug that the purity check is for: it forgets to hide the decodes."""

    broken = True

    def _hide_other_phase(self) -> None:
        if self.broken:
            self._prefill = None
        else:
            super()._hide_other_phase()


class ManyPrefillsScheduler(NeuronScheduler):
    """A subclass that admits everybody."""

    broken = True

    def can_schedule(self, request) -> bool:
        return self.broken or super().can_schedule(request)


class TestB7ErrorAfterCommit:
    """An error must come before vLLM has counted tokens as computed, or not at all."""

    @seed_fault_of_0_29
    def test_seed_loses_the_step_that_it_complains_about(self):
        driver = grammar_arrives_among_decodes(SEED)
        before = driver.requests["A"].num_computed_tokens
        with pytest.raises(RuntimeError):
            driver.step()
        assert driver.requests["A"].num_computed_tokens == before + 1
        # Nobody computed that token, and nobody ever will.
        stall = run_until_stalled(driver, MAX_EMPTY_STEPS)
        assert stall is not None
        assert all(r.num_computed_tokens == r.num_tokens for r in driver.scheduler.running)

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    @pytest.mark.parametrize(
        ("cls", "complaint"),
        [
            (MixingScheduler, r"mixed prefill \(1\) and decode \(1\)"),
            (ManyPrefillsScheduler, r"3 prefills"),
        ],
    )
    def test_mended(self, cls, complaint, policy):
        driver = drive(cls, policy=policy)
        driver.scheduler.broken = False
        driver.add("A", 20)
        driver.run_until_decoding("A")
        for name in "BCD":
            driver.add(name, 20)
        before = queues(driver), free_blocks(driver), driver.requests["A"].num_computed_tokens

        driver.scheduler.broken = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match=complaint):
                driver.step()
            after = queues(driver), free_blocks(driver), driver.requests["A"].num_computed_tokens
            assert after == before

        driver.scheduler.broken = False
        finish(driver)

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    @pytest.mark.parametrize("cls", CHAIN)
    def test_an_error_inside_vllm_leaves_every_queue_whole(self, cls, policy, monkeypatch):
        driver = drive(cls, policy=policy)
        driver.add("A", 20)
        driver.run_until_decoding("A")
        driver.add("G", 20, grammar_delay=5)
        for name in "BC":
            driver.add(name, 20)
        before = queues(driver)

        def fail(*args, **kwargs):
            raise MemoryError("stand-in for anything")

        with monkeypatch.context() as patch:
            patch.setattr(driver.scheduler.kv_cache_manager, "allocate_slots", fail)
            for _ in range(2):
                with pytest.raises(MemoryError):
                    driver.step()
                assert queues(driver) == before
        finish(driver)


class TestB8DefaultBuckets:
    """The default ladder must end where the constraint on custom ladders says."""

    @staticmethod
    def one_prompt(scheduler_cls, max_num_batched_tokens: int, length: int) -> Driver:
        driver = drive(
            scheduler_cls,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=2048,
            num_blocks=300,
        )
        driver.add("A", length)
        return driver

    @pytest.mark.parametrize(("maximum", "length"), [(1000, 600), (64, 50), (100, 100)])
    def test_seed_has_no_bucket_for_a_chunk(self, maximum, length):
        driver = self.one_prompt(SEED, maximum, length)
        with pytest.raises(StopIteration):
            driver.step()

    @pytest.mark.parametrize(
        ("maximum", "length", "padded"), [(1000, 600, 1000), (64, 50, 64), (100, 100, 100)]
    )
    def test_mended(self, maximum, length, padded):
        driver = self.one_prompt(NeuronScheduler, maximum, length)
        assert driver.step().output.num_scheduled_tokens_padded == {"A": padded}
        finish(driver)
