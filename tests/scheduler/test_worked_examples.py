"""The worked numbers of the design document, from real schedulers instead of from the lookup."""

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from neuron_sched_lab.scheduler import (
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SchedulerState,
)
from tests.scheduler.factory import make_scheduler
from tests.scheduler.harness import Driver, Step
from tests.scheduler.invariants import check_finished, watchers_for

CLASSES = [PaddedScheduler, NeuronScheduler, NeuronAsyncScheduler]


def drive(cls, **settings) -> Driver:
    settings = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 8192,
        "max_model_len": 33_000,
        "block_size": 8,
        "num_blocks": 8_300,
    } | settings
    asynchronous = issubclass(cls, AsyncScheduler)
    scheduler = make_scheduler(cls, async_scheduling=asynchronous, **settings)
    driver = Driver(scheduler, depth=int(asynchronous))
    driver.watchers += watchers_for(scheduler)
    return driver


def counts(step: Step, req_id: str) -> tuple[int, int]:
    """(actual, padded) tokens of a request in a step."""
    output = step.output
    return output.num_scheduled_tokens[req_id], output.num_scheduled_tokens_padded[req_id]


@pytest.mark.parametrize("cls", CLASSES)
class TestTokenAccounting:
    @pytest.mark.parametrize(
        ("actual", "padded"),
        [
            (50, 128), (127, 128), (128, 128), (129, 256), (200, 256),
            (1500, 2048), (2048, 2048), (5000, 8192),
        ],
    )  # fmt: skip
    def test_prefill_then_decode(self, cls, actual, padded):
        driver = drive(cls)
        request = driver.add("A", actual, max_tokens=3)
        assert counts(driver.step(), "A") == (actual, padded)
        assert request.num_computed_tokens == request.num_prompt_tokens
        assert driver.scheduler.total_padding_tokens == padded - actual
        assert counts(driver.step(), "A") == (1, 1)
        driver.run()
        check_finished(driver)
        assert driver.scheduler.total_padding_tokens == padded - actual

    def test_prefix_hit_of_1000_leaves_4000_in_a_bucket_of_4096(self, cls):
        driver = drive(cls, prefix_caching=True)
        prefix = [i % 251 for i in range(1000)]  # 125 whole blocks of 8
        driver.add("first", [*prefix, 1, 2, 3], max_tokens=1)
        driver.run()
        request = driver.add("A", prefix + [7 + i % 200 for i in range(4000)], max_tokens=3)
        step = driver.step()
        assert step.output.scheduled_new_reqs[0].num_computed_tokens == 1000
        assert counts(step, "A") == (4000, 4096)
        assert request.num_computed_tokens == 5000
        assert counts(driver.step(), "A") == (1, 1)
        driver.run()
        check_finished(driver)

    def test_32_000_tokens_in_chunks_of_8192(self, cls):
        driver = drive(cls)
        request = driver.add("A", 32_000, max_tokens=2)
        computed = [0]
        sizes = []
        while computed[-1] < 32_000:
            sizes.append(counts(driver.step(), "A"))
            computed.append(request.num_computed_tokens)
        assert computed == [0, 8192, 16_384, 24_576, 32_000]
        assert sizes == [(8192, 8192)] * 3 + [(7424, 8192)]
        driver.run()
        check_finished(driver)


@pytest.mark.parametrize("cls", [NeuronScheduler, NeuronAsyncScheduler])
def test_10k_tokens_in_2k_segments_stay_in_active_prefill_for_5_steps(cls):
    driver = drive(cls, max_num_batched_tokens=2048)
    driver.add("A", 10_000, max_tokens=3)
    states = []
    for _ in range(6):
        driver.step()
        states.append(driver.scheduler.state)
    assert states == [SchedulerState.ACTIVE_PREFILL] * 5 + [SchedulerState.ACTIVE_DECODE]


class PaddedCountScheduler(PaddedScheduler):
    """The bug that the two fields prevent: the padded count goes where the actual one belongs."""

    def _update_after_schedule(self, scheduler_output) -> None:
        for req_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            padded = self._calculate_padded_count(num_tokens)
            scheduler_output.num_scheduled_tokens[req_id] = padded
        super()._update_after_schedule(scheduler_output)


def test_a_padded_count_in_num_scheduled_tokens_breaks_the_accounting():
    scheduler = make_scheduler(
        PaddedCountScheduler, max_num_batched_tokens=8192, max_model_len=9000, num_blocks=600
    )
    driver = Driver(scheduler)
    request = driver.add("A", 5000)
    scheduler.schedule(False)
    assert request.num_tokens - request.num_computed_tokens == 5000 - 8192 == -3192
    # A negative amount of work is none: the request is never scheduled again.
    assert scheduler.schedule(False).num_scheduled_tokens == {}
    assert scheduler.running == [request]
