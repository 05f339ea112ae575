"""TraceSummary: the figures of a run, computed from its records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .records import DECODE, EMPTY, MIXED, PREFILL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pandas import DataFrame
    from rich.table import Table

    from .records import RequestInfo, StepRecord


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a run. Times are in steps, so they are the same on every machine.

    Attributes:
        scheduler: name of the scheduler class.
        steps: number of steps by phase.
        num_tokens: actual tokens computed.
        num_padded_tokens: tokens of all tensors.
        decode_rows: (rows used, rows padded) over all decode steps.
        shapes: distinct tensor shapes, each a graph to compile.
        ttft_steps: by request, steps from arrival to the first token.
        itl_steps: steps between one token of a request and its next, over all requests.
        num_preemptions: requests that lost their KV blocks.
    """

    scheduler: str
    steps: dict[str, int]
    num_tokens: int
    num_padded_tokens: int
    decode_rows: tuple[int, int]
    shapes: tuple[tuple, ...]
    ttft_steps: dict[str, int]
    itl_steps: tuple[int, ...]
    num_preemptions: int

    @property
    def padded_share(self) -> float:
        """Padding tokens as a share of all tokens in the tensors, 0 to 1."""
        if not self.num_padded_tokens:
            return 0.0
        return 1 - self.num_tokens / self.num_padded_tokens

    @property
    def decode_fill(self) -> float:
        """Rows used as a share of the rows of the decode batches, 0 to 1."""
        used, rows = self.decode_rows
        return used / rows if rows else 0.0

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures as (name, value) in words."""
        phases = ", ".join(f"{n} {phase}" for phase, n in self.steps.items() if n)
        return [
            ("scheduler", self.scheduler),
            ("steps", f"{sum(self.steps.values())} ({phases})"),
            ("padding", f"{self.padded_share:.1%} of {self.num_padded_tokens} tokens"),
            ("decode batch fill", f"{self.decode_fill:.1%} of {self.decode_rows[1]} rows"),
            ("distinct shapes", str(len(self.shapes))),
            ("time to first token", _describe(list(self.ttft_steps.values()))),
            ("time between tokens", _describe(self.itl_steps)),
            ("preemptions", str(self.num_preemptions)),
        ]

    def __repr__(self) -> str:
        """Return the figures in words, for the end of a cell."""
        return str(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:<20} {value}" for name, value in self.rows())

    def __rich__(self) -> Table:
        """Return the figures as a table for `rich.print`."""
        from rich.table import Table

        table = Table("figure", "value", title="Trace summary")
        for name, value in self.rows():
            table.add_row(name, value)
        return table

    def to_frame(self) -> DataFrame:
        """Return the figures as numbers, one row, for comparing runs with `pandas.concat`."""
        from pandas import DataFrame

        ttft = list(self.ttft_steps.values())
        figures = {
            "scheduler": self.scheduler,
            **{f"{phase}_steps": n for phase, n in self.steps.items()},
            "num_tokens": self.num_tokens,
            "num_padded_tokens": self.num_padded_tokens,
            "padded_share": self.padded_share,
            "decode_fill": self.decode_fill,
            "num_shapes": len(self.shapes),
            "ttft_steps_p50": median(ttft) if ttft else None,
            "ttft_steps_max": max(ttft, default=None),
            "itl_steps_p50": median(self.itl_steps) if self.itl_steps else None,
            "itl_steps_max": max(self.itl_steps, default=None),
            "num_preemptions": self.num_preemptions,
        }
        return DataFrame([figures])


def summarise(
    scheduler: str, requests: Mapping[str, RequestInfo], records: Sequence[StepRecord]
) -> TraceSummary:
    """Compute the figures of a run.

    Args:
        scheduler: name of the scheduler class.
        requests: what was added, by id.
        records: one a step.
    """
    decodes = [r for r in records if r.phase == DECODE]
    first_steps, gaps = _token_steps(records)
    steps = Counter(r.phase for r in records)
    return TraceSummary(
        scheduler=scheduler,
        steps={phase: steps.get(phase, 0) for phase in (PREFILL, DECODE, MIXED, EMPTY)},
        num_tokens=sum(r.num_tokens for r in records),
        num_padded_tokens=sum(r.num_padded_tokens for r in records),
        decode_rows=(
            sum(len(r.scheduled) for r in decodes),
            sum(r.decode_batch_bucket or len(r.scheduled) for r in decodes),
        ),
        shapes=tuple(sorted({r.shape for r in records if r.shape is not None}, key=str)),
        ttft_steps={
            request_id: step - requests[request_id].arrived_before_step + 1
            for request_id, step in first_steps.items()
            if request_id in requests
        },
        itl_steps=tuple(gaps),
        num_preemptions=sum(len(r.preempted) for r in records),
    )


def _token_steps(records: Sequence[StepRecord]) -> tuple[dict[str, int], list[int]]:
    """Return each request's first step with a token, and all gaps between token steps."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    gaps: list[int] = []
    for record in records:
        for scheduled in record.scheduled:
            if not scheduled.new_token_ids:
                continue
            request_id = scheduled.request_id
            if request_id in last:
                gaps.append(record.step - last[request_id])
            first.setdefault(request_id, record.step)
            last[request_id] = record.step
    return first, gaps


def _describe(steps: list[int] | tuple[int, ...]) -> str:
    if not steps:
        return "no token"
    return f"median {median(steps):g}, longest {max(steps)} steps"
