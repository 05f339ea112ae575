"""Moves: how many requests a scheduler takes out of its waiting queue, and puts in, in a step.

A scheduler that moves every waiting request gets slower as more wait. Counting the moves shows it
more surely than timing would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.request_queue import FCFSRequestQueue

from ...simulation.bare_scheduler import make_request, make_scheduler

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class CountingQueue(FCFSRequestQueue):
    """A first-come-first-served queue that counts what goes in and out.

    Attributes:
        moves: requests added or removed so far.
    """

    moves = 0

    def append(self, item: Any) -> None:
        """See deque; so are the others."""
        self.moves += 1
        super().append(item)

    def appendleft(self, item: Any) -> None:  # noqa: D102
        self.moves += 1
        super().appendleft(item)

    def pop(self) -> Any:  # noqa: D102
        self.moves += 1
        return super().pop()

    def popleft(self) -> Any:  # noqa: D102
        self.moves += 1
        return super().popleft()

    def extend(self, items: Iterable[Any]) -> None:  # noqa: D102
        for item in items:
            self.append(item)

    def extendleft(self, items: Iterable[Any]) -> None:  # noqa: D102
        for item in items:
            self.appendleft(item)

    def remove(self, item: Any) -> None:  # noqa: D102
        self.moves += 1
        super().remove(item)

    def clear(self) -> None:  # noqa: D102
        self.moves += len(self)
        super().clear()


def count_moves(cls: type[Scheduler], num_waiting: int) -> int:
    """Return the moves of one step in which `num_waiting` requests wait and the first may start."""
    scheduler = make_scheduler(
        cls,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_blocks=65,
        block_size=16,
    )
    queue = CountingQueue()
    scheduler.waiting = queue
    for number in range(num_waiting):
        scheduler.add_request(make_request(f"r{number}", range(8), max_tokens=4))
    queue.moves = 0
    scheduler.schedule(False)
    return queue.moves
