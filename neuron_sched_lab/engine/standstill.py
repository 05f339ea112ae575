"""When empty steps in a row mean that an engine stands still, and the error text for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

from ..trace.board import printable

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

MAX_EMPTY_STEPS = 100
"""So many empty steps in a row, with requests left, are a stall."""

AWAITING_OTHERS = (
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    RequestStatus.WAITING_FOR_REMOTE_KVS,
)
"""Waiting for a grammar to be compiled, or for KV blocks from elsewhere: other threads end it."""

SHOWN_IDS = 8


def awaits_others(scheduler: Scheduler) -> bool:
    """Tell whether a request waits for another thread's work; empty steps are normal then."""
    return any(request.status in AWAITING_OTHERS for request in scheduler.requests.values())


def describe_standstill(scheduler: Scheduler, last: int) -> str:
    """Return who is left after MAX_EMPTY_STEPS empty steps in a row, and where to look.

    Args:
        scheduler: whose steps they were.
        last: the last of them.
    """
    ids = list(scheduler.requests)
    names = " ".join(map(printable, ids[:SHOWN_IDS])) + (" ..." if len(ids) > SHOWN_IDS else "")
    return (
        f"{type(scheduler).__name__}: steps {last - MAX_EMPTY_STEPS + 1} to {last} scheduled "
        f"nothing, though requests are left: {names}; see lab.trace[-1] for who waits, and the "
        f"class's can_schedule() and schedule() for why; lab.reset() forgets them"
    )
