"""Arrivals: which request of a workload is due next, followers of finished ones included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ..settings.arguments import check_positive

if TYPE_CHECKING:
    from .request import WorkloadRequest


class Arrival(NamedTuple):
    """A request that is known to arrive.

    Attributes:
        seconds: when.
        request_index: which, in the workload.
    """

    seconds: float
    request_index: int


class Arrivals:
    """Those of `requests` that have not arrived yet, soonest first."""

    def __init__(self, requests: Sequence[WorkloadRequest]) -> None:
        self._requests = requests
        self._followers: dict[str, list[int]] = {}
        self._known: list[Arrival] = []
        for index, request in enumerate(requests):
            if request.after is None:
                self._known.append(Arrival(request.arrival_seconds, index))
            else:
                self._followers.setdefault(request.after, []).append(index)
        heapify(self._known)

    @property
    def next_seconds(self) -> float:
        """When the next known arrival is, or infinity if none is known."""
        return self._known[0].seconds if self._known else float("inf")

    def __bool__(self) -> bool:
        """Tell whether any request is known to arrive."""
        return bool(self._known)

    def pop_due(self, now: float) -> Arrival | None:
        """Take out the next request if it has arrived by `now`."""
        if self._known and self._known[0].seconds <= now:
            return heappop(self._known)
        return None

    def release_followers(self, request_id: str, now: float) -> None:
        """Set the arrivals of the requests that waited for this one, which ended at `now`."""
        for index in self._followers.pop(request_id, ()):
            pause = self._requests[index].arrival_seconds
            heappush(self._known, Arrival(now + pause, index))


def with_poisson_arrivals(
    requests: Iterable[WorkloadRequest], requests_per_second: float, *, seed: int = 0
) -> list[WorkloadRequest]:
    """Return `requests` with new arrival times, for files that hold no times.

    Raises:
        ValueError: the rate is not positive.
    """
    check_positive(requests_per_second=requests_per_second)
    random = Random(seed)
    now, arriving = 0.0, []
    for request in requests:
        now += random.expovariate(requests_per_second)
        arriving.append(replace(request, arrival_seconds=now))
    return arriving
