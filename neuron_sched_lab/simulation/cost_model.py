"""CostModel: how long a step takes. What a simulation's clock runs by.

A step on a static-shape device costs what its graph costs, whatever is in it: a prefill graph is
known by its bucket, a decode graph by the rows of its batch. How much of the KV cache is read
comes on top.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class CostModel(Protocol):
    """Seconds of a step. Pure: the same arguments give the same seconds.

    A cost model may also have `request_seconds`: what the engine needs, between two steps, to take
    a request in. Without it that takes no time.
    """

    def prefill_seconds(self, bucket: int, context: int) -> float:
        """Return the seconds of one prefill chunk.

        Args:
            bucket: tokens of its tensor, padding included.
            context: tokens of the request that are in the KV cache already.
        """

    def decode_seconds(self, batch_bucket: int, context: int) -> float:
        """Return the seconds of one decode step.

        Args:
            batch_bucket: rows of the batch, padding included.
            context: tokens that the longest of its requests attends to, the new one included.
        """


@dataclass(frozen=True)
class FunctionCostModel:
    """A CostModel of two functions of your own.

        FunctionCostModel(lambda bucket, context: 1e-3 + 2e-5 * bucket, lambda rows, context: 8e-3)

    Attributes:
        prefill: seconds by (bucket, context).
        decode: seconds by (batch bucket, context).
    """

    prefill: Callable[[int, int], float]
    decode: Callable[[int, int], float]

    def prefill_seconds(self, bucket: int, context: int) -> float:
        """Return `prefill(bucket, context)`."""
        return self.prefill(bucket, context)

    def decode_seconds(self, batch_bucket: int, context: int) -> float:
        """Return `decode(batch_bucket, context)`."""
        return self.decode(batch_bucket, context)


@dataclass(frozen=True)
class Line:
    """Seconds as a straight line over the context.

    Attributes:
        base: seconds without any context.
        per_context_token: seconds more for each token of context.
    """

    base: float
    per_context_token: float = 0.0

    def at(self, context: int) -> float:
        """Return the seconds at `context` tokens."""
        return self.base + self.per_context_token * context


@dataclass(frozen=True)
class MeasuredCostModel:
    """A CostModel from a table of measured graphs; see `calibration` for one from a live run.

    Between two measured sizes it interpolates; beyond the largest it goes on in proportion, below
    the smallest it stays. Exact sizes, which is what a ladder's buckets are, are looked up.

    Attributes:
        prefill: a Line for each measured bucket, ascending.
        decode: a Line for each measured batch bucket, ascending.
        request_seconds: what the engine needs, between two steps, to take a request in.

    Raises:
        ValueError: a table is empty.
    """

    prefill: Mapping[int, Line]
    decode: Mapping[int, Line]
    request_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            table = getattr(self, name)
            if not table:
                raise ValueError(f"{name}: the table is empty; measure at least one bucket")
            object.__setattr__(self, name, dict(sorted(table.items())))

    def prefill_seconds(self, bucket: int, context: int) -> float:
        """Return the seconds measured for `bucket`, at `context`."""
        return _interpolate(self.prefill, bucket, context)

    def decode_seconds(self, batch_bucket: int, context: int) -> float:
        """Return the seconds measured for `batch_bucket`, at `context`."""
        return _interpolate(self.decode, batch_bucket, context)


def _interpolate(table: Mapping[int, Line], size: int, context: int) -> float:
    exact = table.get(size)
    if exact is not None:
        return exact.at(context)
    sizes = list(table)
    index = bisect_left(sizes, size)
    if index == 0:
        return table[sizes[0]].at(context)
    if index == len(sizes):
        return table[sizes[-1]].at(context) * size / sizes[-1]
    below, above = sizes[index - 1], sizes[index]
    share = (size - below) / (above - below)
    return (1 - share) * table[below].at(context) + share * table[above].at(context)
