"""vLLM may count its requests in the middle of a step; those out of its sight count too."""

import pytest

from neuron_sched_lab.scheduler import HoldbackScheduler
from tests.scheduler.holes import CHAIN, PURE, drive


def counts_in_mid_step(driver) -> list[tuple[int, int]]:
    """What get_request_counts() says whenever vLLM allocates KV blocks in the next step."""
    manager, counts = driver.scheduler.kv_cache_manager, []
    allocate_slots = manager.allocate_slots

    def counting(*args, **kwargs):
        counts.append(driver.scheduler.get_request_counts())
        return allocate_slots(*args, **kwargs)

    manager.allocate_slots = counting
    driver.step()
    manager.allocate_slots = allocate_slots
    return counts


def driver_with_one_decode(cls):
    driver = drive(cls, max_num_seqs=8)
    driver.add("A", 20)
    driver.run_until_decoding("A")
    return driver


@pytest.mark.parametrize("cls", CHAIN)
def test_held_back_requests_are_counted(cls):
    driver = driver_with_one_decode(cls)
    driver.add("G", 20, grammar_delay=9)
    for name in "BCD":
        driver.add(name, 20)
    # B is about to be admitted, C, D and G wait. A may be scheduled first.
    assert set(counts_in_mid_step(driver)) == {(1, 4)}


@pytest.mark.parametrize("cls", PURE)
def test_hidden_decodes_are_counted(cls):
    driver = driver_with_one_decode(cls)
    driver.add("B", 20)
    assert counts_in_mid_step(driver) == [(1, 1)]


def test_between_steps_nothing_is_counted_twice():
    driver = driver_with_one_decode(HoldbackScheduler)
    driver.add("B", 20)
    assert driver.scheduler.get_request_counts() == (1, 1)
