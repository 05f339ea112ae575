"""What the tests of the fourteen holes share.

B1 to B14 are faults of the design document's scheduler, taken literally (`SEED`, seed_literal.py).
For each, tests named `test_seed_...` show the fault, so that no test of the mended package passes
for want of a provocation. They stand in test_holes_*.py, by the lesson that owns the fault, and
B13 in test_state_machine.py.
"""

from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from neuron_sched_lab.scheduler.compat import HAS_SKIPPED_WAITING
from tests.scheduler import seed_literal
from tests.scheduler.factory import make_scheduler
from tests.scheduler.harness import Driver, waiting_requests
from tests.scheduler.invariants import check_finished, watchers_for

SEED = seed_literal.NeuronScheduler
CHAIN = [
    HoldbackScheduler,
    SeparatedScheduler,
    PaddedScheduler,
    KVAdmissionScheduler,
    NeuronScheduler,
    NeuronAsyncScheduler,
]
PURE = CHAIN[1:]
"""The classes that never mix phases."""

seed_fault_of_0_29 = pytest.mark.skipif(
    not HAS_SKIPPED_WAITING,
    reason="the seed holds back requests that wait for a grammar where vLLM has them in `waiting`",
)
"""For tests that show a fault of the seed (B3, and B13 in part) which 0.32 takes away."""

MAX_EMPTY_STEPS = 20
"""Patience of the watchdog; the package never needs more than one."""


def drive(cls: type[Scheduler], **settings: Any) -> Driver:
    """A driver of `cls`; one of our classes is checked after every step."""
    asynchronous = issubclass(cls, AsyncScheduler)
    scheduler = make_scheduler(cls, async_scheduling=asynchronous, **settings)
    driver = Driver(scheduler, depth=int(asynchronous))
    if issubclass(cls, HoldbackScheduler) and getattr(cls, "progress_guard", True):
        driver.watchers += watchers_for(scheduler)
    return driver


def finish(driver: Driver) -> None:
    """Run to the end and check the whole."""
    driver.run()
    check_finished(driver)


def queues(driver: Driver) -> tuple[list[str], list[str]]:
    """(running, waiting) ids."""
    scheduler = driver.scheduler
    return (
        [request.request_id for request in scheduler.running],
        [request.request_id for request in waiting_requests(scheduler)],
    )


def free_blocks(driver: Driver) -> int:
    """KV blocks that nobody holds."""
    return driver.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def grammar_arrives_among_decodes(cls: type[Scheduler]) -> Driver:
    """Three requests decode, then one comes whose grammar is compiled at once (B3, B7)."""
    driver = drive(cls)
    for name in "ABC":
        driver.add(name, 20)
    driver.run_until_decoding("A", "B", "C")
    driver.add("G", 20, grammar_delay=0)
    return driver
