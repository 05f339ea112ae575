"""What a kernel made the engines do: instructions, matmul work, bytes moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple


class Dma(NamedTuple):
    """One dma_copy.

    Attributes:
        route: such as "hbm to sbuf".
        bytes: moved; of the wider side, if the formats differ.
        skipped_rows: of a gather or scatter, left out because their index was out of bounds.
    """

    route: str
    bytes: int
    skipped_rows: int


@dataclass
class Counts:
    """Counters of one or more kernel runs.

    Attributes:
        instructions: (engine, operation) -> how many.
        matmul_flops: two for each multiply-add of nc_matmul; transposes move data and count none.
        dmas: one Dma for each dma_copy, in order.
        peak_sbuf_bytes: most bytes of a partition in use at once.
        peak_psum_banks: most PSUM banks in use at once.
    """

    instructions: Counter[tuple[str, str]] = field(default_factory=Counter)
    matmul_flops: int = 0
    dmas: list[Dma] = field(default_factory=list)
    peak_sbuf_bytes: int = 0
    peak_psum_banks: int = 0

    @property
    def per_engine(self) -> dict[str, int]:
        """Instructions by engine."""
        engines: Counter[str] = Counter()
        for (engine, _), count in self.instructions.items():
            engines[engine] += count
        return dict(engines)

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from or written to HBM."""
        return sum(dma.bytes for dma in self.dmas if "hbm" in dma.route)

    def __str__(self) -> str:
        lines = [f"{'engine':<8} {'operation':<24} {'instructions':>12}"]
        for (engine, operation), count in sorted(self.instructions.items()):
            lines.append(f"{engine:<8} {operation:<24} {count:>12,}")
        for route in sorted({dma.route for dma in self.dmas}):
            moved = [dma for dma in self.dmas if dma.route == route]
            skipped = sum(dma.skipped_rows for dma in moved)
            lines.append(
                f"{route}: {sum(dma.bytes for dma in moved):,} bytes in {len(moved):,} DMAs, "
                f"{skipped:,} rows skipped"
            )
        lines.append(f"matmul: {self.matmul_flops:,} flops")
        lines.append(
            f"peak: {self.peak_sbuf_bytes:,} SBUF bytes a partition, "
            f"{self.peak_psum_banks} PSUM banks"
        )
        return "\n".join(lines)


_counting: ContextVar[Counts | None] = ContextVar("counting", default=None)


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what the kernels run inside the `with` do; yields the counters, all 0 at first."""
    counts = Counts()
    token = _counting.set(counts)
    try:
        yield counts
    finally:
        _counting.reset(token)


def current_counts() -> Counts:
    """Return the counters of the innermost `counting()`, or some that nobody reads."""
    counts = _counting.get()
    return Counts() if counts is None else counts
