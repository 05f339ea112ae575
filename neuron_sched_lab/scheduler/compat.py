"""What differs between vLLM versions; no other file depends on the version.

vLLM 0.29 keeps requests that cannot start yet (grammar not compiled, remote KV not here) in
`skipped_waiting` and looks there first. vLLM 0.32 leaves them in `waiting`, in arrival order,
and has `kv_holding_waiting` for those that already hold blocks. Both classes of request are
held back alike; only where they stand, and in which order they are looked at, differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.request_queue import RequestQueue
    from vllm.v1.request import Request

HAS_SKIPPED_WAITING = hasattr(Scheduler, "_try_promote_blocked_waiting_request")
"""True for vLLM 0.29 to the version before `kv_holding_waiting` came in."""

SIDE_QUEUE = "skipped_waiting" if HAS_SKIPPED_WAITING else "kv_holding_waiting"
"""Name of the attribute that holds vLLM's second waiting queue."""

STARTABLE = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
"""A request of any other status waits for something besides its turn."""


def get_max_num_running(scheduler: Scheduler) -> int:
    """Return how many requests vLLM lets run at once."""
    if HAS_SKIPPED_WAITING:
        return scheduler.max_num_running_reqs
    return scheduler.max_num_active_reqs


def is_ready(scheduler: Scheduler, request: Request) -> bool:
    """Tell whether vLLM would schedule `request` now if it were offered.

    Like vLLM's own look at a queue, this moves a request whose grammar or remote KV has arrived
    on to WAITING (or PREEMPTED).
    """
    if request.num_stale_output_tokens > 0 and not request.drop_stale_output:
        return False
    if request.status in STARTABLE:
        return True
    if HAS_SKIPPED_WAITING:
        return scheduler._try_promote_blocked_waiting_request(request)
    return scheduler._handle_blocked_waiting_request(request)


def first_ready(scheduler: Scheduler, queue: RequestQueue) -> Request | None:
    """Return the first request of `queue`, in its own order, that is ready."""
    if not queue:
        return None
    # A priority queue copies its heap to iterate; the head alone is almost always enough.
    head = queue.peek_request()
    if is_ready(scheduler, head):
        return head
    return next((r for r in queue if r is not head and is_ready(scheduler, r)), None)


def next_candidate(
    scheduler: Scheduler, waiting: RequestQueue, side: RequestQueue
) -> tuple[Request, RequestQueue] | None:
    """Return the request that vLLM would start next and the queue that holds it, or None.

    None means: nobody waits, nobody who waits is ready, or the scheduler is paused.
    """
    if scheduler.pause_state:
        # 0.32 still drains requests that hold blocks while new ones are paused.
        may_drain = not HAS_SKIPPED_WAITING and scheduler.pause_state == PauseState.PAUSED_NEW
        request = first_ready(scheduler, side) if may_drain else None
        return None if request is None else (request, side)
    from_side = first_ready(scheduler, side)
    if from_side is not None and not _compares_heads(scheduler):
        return from_side, side
    from_waiting = first_ready(scheduler, waiting)
    if from_side is not None and (from_waiting is None or from_side < from_waiting):
        return from_side, side
    return None if from_waiting is None else (from_waiting, waiting)


def _compares_heads(scheduler: Scheduler) -> bool:
    """Tell whether vLLM compares the heads of its two queues; if not, the second goes first."""
    return HAS_SKIPPED_WAITING and scheduler.policy == SchedulingPolicy.PRIORITY
