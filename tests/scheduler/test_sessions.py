"""Streaming sessions between two inputs: they hold blocks, and others must not wait for these."""

import pytest
from vllm.v1.core.sched.interface import PauseState

from neuron_sched_lab.scheduler import (
    HoldReason,
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
)
from neuron_sched_lab.scheduler.compat import HAS_SKIPPED_WAITING
from tests.scheduler.factory import make_scheduler
from tests.scheduler.holes import queues
from tests.scheduler.world import SessionDriver

CLASSES = [KVAdmissionScheduler, NeuronScheduler, NeuronAsyncScheduler]
POLICIES = ["worst_case", "reservation", "banker"]


def drive_session(cls, kv_admission: str, num_blocks: int, **settings) -> SessionDriver:
    """A session that decodes; its claim is max_model_len, 8 blocks of 16."""
    scheduler = make_scheduler(
        cls,
        max_model_len=128,
        num_blocks=num_blocks,
        neuron_config={"kv_admission": kv_admission},
        **settings,
    )
    driver = SessionDriver(scheduler, depth=0)
    driver.add("session", 20, max_tokens=4, resumable=True, priority=1)
    driver.run_until_decoding("session")
    return driver


def session_between_inputs(cls, kv_admission: str, num_blocks: int) -> SessionDriver:
    """A session whose turn is over."""
    driver = drive_session(cls, kv_admission, num_blocks)
    while not driver.waits_for_input("session"):
        driver.step()
    return driver


@pytest.mark.parametrize("kv_admission", POLICIES)
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_session_that_goes_on_overtakes_whom_it_keeps_out(cls, kv_admission, policy):
    """On 0.29 it stands behind a head that waits for its blocks; 0.32 itself looks there first."""
    driver = drive_session(cls, kv_admission, num_blocks=9, policy=policy)
    driver.add("B", 20, max_tokens=108)
    driver.feed("session", [1, 2, 3])
    while driver.scheduler.running:
        assert not driver.step().admitted
    assert driver.step().admitted == ["session"]
    assert driver.scheduler.held_back is driver.requests["B"]
    behind = HoldReason.KV_SATURATED if HAS_SKIPPED_WAITING else HoldReason.PREFILL_BATCH_FULL
    assert driver.scheduler.hold_reason == behind
    driver.end_session("session")
    driver.run()
    assert len(driver.outputs["B"]) == 108


@pytest.mark.parametrize("kv_admission", POLICIES)
@pytest.mark.parametrize("cls", CLASSES)
def test_two_sessions_are_promised_no_block_twice(cls, kv_admission):
    driver = session_between_inputs(cls, kv_admission, num_blocks=16)
    driver.add("second", 20, max_tokens=2, resumable=True)
    assert driver.step().empty
    running, waiting = queues(driver)
    assert not running and "second" in waiting


@pytest.mark.skipif(HAS_SKIPPED_WAITING, reason="0.29 starts nobody while new requests are paused")
@pytest.mark.parametrize("cls", CLASSES)
def test_a_session_goes_on_in_a_pause_for_new_requests(cls):
    driver = session_between_inputs(cls, "worst_case", num_blocks=17)
    driver.feed("session", [1, 2, 3])
    driver.pause(PauseState.PAUSED_NEW)
    assert driver.step().admitted == ["session"]
