"""A request that vLLM passes over, because its KV connector says "not yet", is not lost.

vLLM then moves it to the second waiting queue, out of the view that it was shown.
"""

from unittest.mock import Mock

import pytest

from tests.scheduler.holes import CHAIN, drive
from tests.scheduler.invariants import check_finished


class NotYet(Mock):
    """A KV connector that cannot tell yet how many tokens of any prompt it has."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return None, False

    def has_pending_push_work(self):
        return False

    def take_events(self):
        return ()

    def request_finished(self, request, block_ids):
        return False, None


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("cls", CHAIN)
def test_a_deferred_request_keeps_its_place(cls, policy):
    driver = drive(cls, policy=policy)
    driver.add("A", 20, max_tokens=20)
    driver.run_until_decoding("A")
    driver.watchers = driver.watchers[:1]  # nothing lost; a step without effect is no surprise here
    driver.scheduler.connector = NotYet()
    driver.add("B", 20)
    driver.add("C", 20)
    for _ in range(6):
        assert not driver.step().admitted
    driver.scheduler.connector = None
    admitted = [req_id for step in driver.run() for req_id in step.admitted]
    assert admitted == ["B", "C"]
    check_finished(driver)
