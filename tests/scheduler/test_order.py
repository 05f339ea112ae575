"""First come, first served, however often the first was told to wait."""

import pytest

from neuron_sched_lab.scheduler import HoldbackScheduler, PaddedScheduler, SeparatedScheduler
from tests.scheduler.holes import CHAIN, drive, queues


@pytest.mark.parametrize("cls", CHAIN)
def test_admitted_in_order_of_arrival(cls):
    driver = drive(cls, max_num_seqs=2)
    for name in "ABCDEF":
        driver.add(name, 40, max_tokens=5)
    admitted = [req_id for step in driver.run() for req_id in step.admitted]
    assert admitted == list("ABCDEF")


@pytest.mark.parametrize("cls", [HoldbackScheduler, SeparatedScheduler, PaddedScheduler])
def test_whoever_passed_others_by_and_does_not_fit_returns_behind_them(cls):
    """C has its grammar before A and B have theirs, but there is no room for it."""
    driver = drive(cls, num_blocks=6)  # 5 blocks of 16
    driver.add("running", 60, max_tokens=20)
    driver.run_until_decoding("running")
    for name, grammar_delay in (("A", 30), ("B", 30), ("C", 0)):
        driver.add(name, 40, grammar_delay=grammar_delay)
    assert not driver.step().admitted
    assert queues(driver) == (["running"], ["A", "B", "C"])
    driver.run()
