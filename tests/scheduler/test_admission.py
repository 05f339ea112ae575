"""What the scheduler says of the request that it did not let in, and whom it refuses for good."""

import pytest
from vllm.v1.core.sched.interface import PauseState

from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    HoldReason,
    KVAdmissionScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from tests.scheduler.factory import make_scheduler
from tests.scheduler.harness import Driver

CHAIN = [
    HoldbackScheduler,
    SeparatedScheduler,
    PaddedScheduler,
    KVAdmissionScheduler,
    NeuronScheduler,
]


def drive(cls, **settings) -> Driver:
    return Driver(make_scheduler(cls, **settings))


def held(driver: Driver) -> tuple[HoldReason | None, str | None]:
    """(reason, id) of the first request not admitted in the last step."""
    request = driver.scheduler.held_back
    return driver.scheduler.hold_reason, request and request.request_id


@pytest.mark.parametrize("cls", CHAIN)
class TestReasonsOfTheWholeChain:
    def test_nobody_waits(self, cls):
        driver = drive(cls)
        driver.step()
        assert held(driver) == (None, None)
        driver.add("A", 20)
        driver.step()
        assert held(driver) == (None, None)

    def test_at_capacity(self, cls):
        driver = drive(cls, max_num_seqs=1)
        driver.add("A", 20)
        driver.run_until_decoding("A")
        driver.add("B", 20)
        driver.step()
        assert held(driver) == (HoldReason.AT_CAPACITY, "B")

    def test_prefill_in_progress(self, cls):
        driver = drive(cls, max_num_batched_tokens=32)
        driver.add("A", 80)
        driver.step()
        driver.add("B", 20)
        driver.step()
        assert held(driver) == (HoldReason.PREFILL_IN_PROGRESS, "B")

    def test_prefill_batch_full(self, cls):
        driver = drive(cls)
        driver.add("A", 20)
        driver.add("B", 20)
        driver.step()
        assert held(driver) == (HoldReason.PREFILL_BATCH_FULL, "B")

    @pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
    def test_paused(self, cls, state):
        driver = drive(cls)
        driver.add("A", 20)
        driver.pause(state)
        driver.step()
        assert held(driver) == (HoldReason.PAUSED, "A")

    def test_not_ready(self, cls):
        driver = drive(cls)
        driver.add("A", 20, grammar_delay=5)
        driver.step()
        assert held(driver) == (HoldReason.NOT_READY, "A")

    def test_capacity_is_asked_first(self, cls):
        """The seed's order of checks: capacity, prefill in progress, batch full, KV cache."""
        driver = drive(cls, max_num_seqs=1, max_num_batched_tokens=32)
        driver.add("A", 80)
        driver.step()
        driver.add("B", 20)
        driver.step()
        assert held(driver) == (HoldReason.AT_CAPACITY, "B")


@pytest.mark.parametrize("cls", [KVAdmissionScheduler, NeuronScheduler])
def test_kv_saturated(cls):
    driver = drive(cls, max_model_len=128, num_blocks=17)  # two requests of 8 blocks
    for name in "ABC":
        driver.add(name, 20)
    driver.run_until_decoding("A", "B")
    driver.step()
    assert held(driver) == (HoldReason.KV_SATURATED, "C")
    assert driver.scheduler.hidden_reqs == []


@pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler, NeuronScheduler])
def test_decodes_first(cls):
    driver = drive(cls, neuron_config={"max_consecutive_prefills": 1})
    for name in "ABC":
        driver.add(name, 20)
    assert [driver.step().admitted for _ in range(2)] == [["A"], ["B"]]
    assert driver.step().decodes == ["A", "B"]
    assert held(driver) == (HoldReason.DECODES_FIRST, "C")


@pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler, NeuronScheduler])
def test_hidden_requests_of_the_last_step(cls):
    driver = drive(cls, max_num_batched_tokens=32)
    driver.add("A", 20)
    driver.add("B", 50)
    hidden = []
    for _ in range(4):
        driver.step()
        hidden.append([request.request_id for request in driver.scheduler.hidden_reqs])
    # Prefill A; both chunks of B, which hide A; decode both.
    assert hidden == [[], ["A"], ["A"], []]


@pytest.mark.parametrize("cls", CHAIN)
def test_a_request_whose_adapter_does_not_fit_waits_for_a_slot(cls):
    driver = drive(cls, max_loras=2, max_num_seqs=4)
    for name, adapter in zip("ABCDE", (1, 2, 3, 1, None), strict=True):
        driver.add(name, 20, max_tokens=3 + (name == "B") * 6, adapter=adapter)
    admitted, waited_for_slot = [], set()
    while not driver.done:
        admitted += driver.step().admitted
        reason, request_id = held(driver)
        if reason is HoldReason.ADAPTERS_FULL:
            waited_for_slot.add(request_id)
    # C waits for A or B, and D, whose adapter A had used, for B or C. Nobody passes them, though
    # D's adapter was loaded while C waited, and E needs none.
    assert waited_for_slot == {"C", "D"}
    assert admitted == list("ABCDE")


@pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler, NeuronScheduler])
def test_without_the_count_of_adapters_hidden_decodes_break_the_engine(cls):
    """Hole B15: in a prefill step vLLM sees no decode, so it counts none of their adapters.

    It lets one adapter too many in, and its own check stops the engine at the next decode step.
    """

    class CountsOnlyVisible(cls):
        def _adapter_fits(self, request):
            return True

    driver = drive(CountsOnlyVisible, max_loras=1)
    driver.add("A", 20, adapter=1)
    driver.add("B", 20, adapter=2)
    with pytest.raises(AssertionError):
        driver.run()


def test_a_preempted_request_takes_a_slot_again_only_if_there_is_one():
    driver = drive(PaddedScheduler, max_loras=1)
    driver.add("A", 20, adapter=1)
    driver.step()
    driver.step()
    driver.reset(running=True)
    driver.add("B", 20, adapter=2)
    assert driver.step().admitted == ["A"]
    driver.step()
    assert held(driver) == (HoldReason.ADAPTERS_FULL, "B")
    driver.run()
