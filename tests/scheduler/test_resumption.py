"""A preempted request comes back as a prefill, and not before its output is in."""

import time

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from neuron_sched_lab.scheduler import PaddedScheduler, SeparatedScheduler
from tests.scheduler.holes import drive


class AsyncSeparatedScheduler(SeparatedScheduler, AsyncScheduler):
    pass


class AsyncPaddedScheduler(PaddedScheduler, AsyncScheduler):
    pass


def preempt(driver, request_id: str, **kwargs) -> None:
    """What vLLM does to a request when it is out of KV blocks."""
    request = driver.requests[request_id]
    driver.scheduler.running.remove(request)
    driver.scheduler._preempt_request(request, time.monotonic(), **kwargs)
    # As in reset_prefix_cache(), which preempts between two steps too.
    driver.scheduler.prev_step_scheduled_req_ids.clear()


@pytest.mark.parametrize("cls", [AsyncSeparatedScheduler, AsyncPaddedScheduler])
def test_not_resumed_while_its_output_is_in_flight(cls):
    driver = drive(cls)
    for name in "AB":
        driver.add(name, 20, max_tokens=20)
    driver.run_until_decoding("A", "B")
    driver.watchers.clear()  # an empty step with output in flight is excused there
    preempt(driver, "B")
    assert driver.requests["B"].num_stale_output_tokens
    # vLLM would pass B over; offered all the same, B would take the step from A.
    assert driver.step().decodes == ["A"]


@pytest.mark.parametrize("v2_output_form", [False, True])
def test_one_last_token_after_a_full_prefix_hit_is_padded_as_a_prefill(v2_output_form):
    driver = drive(
        PaddedScheduler,
        prefix_caching=True,
        v2_output_form=v2_output_form,
        neuron_config={"num_batched_tokens_buckets": [8, 128]},
    )
    driver.add("A", 30, max_tokens=20)
    while driver.requests["A"].num_tokens < 33:
        driver.step()
    preempt(driver, "A")
    step = driver.step()  # 2 blocks of 16 hit, by counts alone the 33rd token were a decode
    assert step.output.num_scheduled_tokens == {"A": 1}
    assert step.output.num_scheduled_tokens_padded == {"A": 8}
    assert driver.scheduler.scheduled_prefills == ["A"]
