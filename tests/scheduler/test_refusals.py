"""A prefill that vLLM would not start is not tried in every other step: a try costs decodes one.

It is tried again when blocks were freed, when a request has left, or after a number of decode
steps, for what refused it may be something that the scheduler cannot see.
"""

import pytest

from neuron_sched_lab.scheduler import PaddedScheduler, SeparatedScheduler
from neuron_sched_lab.scheduler.separation import RETRY_REFUSED_PREFILL_AFTER
from tests.scheduler.holes import drive


def refused_beside_a_decode(cls):
    """A decodes; B was just refused, and will be while the stand-in refuses all prefills."""
    driver = drive(cls)
    driver.watchers.clear()
    driver.add("A", 20, max_tokens=100)
    driver.run_until_decoding("A")
    driver.add("B", 20)
    manager = driver.scheduler.kv_cache_manager
    allocate_slots = manager.allocate_slots

    def refusing(request, *args, **kwargs):
        if request.request_id == "B":
            return None
        return allocate_slots(request, *args, **kwargs)

    manager.allocate_slots = refusing
    assert driver.step().empty
    return driver


@pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler])
def test_tried_again_after_a_while(cls):
    driver = refused_beside_a_decode(cls)
    for _ in range(RETRY_REFUSED_PREFILL_AFTER):
        assert driver.step().decodes == ["A"]
    assert driver.step().empty


@pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler])
def test_tried_again_when_blocks_were_freed(cls):
    driver = refused_beside_a_decode(cls)
    assert driver.step().decodes == ["A"]
    pool = driver.scheduler.kv_cache_manager.block_pool
    before = pool.get_num_free_blocks()
    pool.get_num_free_blocks = lambda: before + 1
    assert driver.step().empty


@pytest.mark.parametrize("cls", [SeparatedScheduler, PaddedScheduler])
def test_another_prefill_has_not_been_refused(cls):
    driver = refused_beside_a_decode(cls)
    assert driver.step().decodes == ["A"]
    driver.abort("B")
    driver.add("C", 20)
    assert driver.step().prefills == ["C"]
