"""Watchdog: runs a Lab until it is done or stalled, and describes the stall.

A deadlocked scheduler raises no error: it goes on scheduling empty steps. An empty step that leaves
queues and KV blocks as they were can only repeat, as the scheduler is given the same again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.utils.math_utils import cdiv

from ..trace.records import EMPTY, StepRecord
from ..trace.trace import Trace

if TYPE_CHECKING:
    from .lab import Lab

PATIENCE = 10
"""Empty steps in a row that are a stall; an async engine may have one while it awaits tokens."""

MAX_STEPS = 10_000


@dataclass(frozen=True)
class Stall:
    """Empty steps that repeat for ever.

    Attributes:
        first_step: the first of them.
        num_steps: how many were watched.
        head: the request in front that vLLM would not start, or None if it was shown nobody.
        hidden: running requests that were hidden in each of the steps.
        blocks_needed: KV blocks that the tokens of `head` take, if it shares none.
        blocks_free: KV blocks that nobody holds.
    """

    first_step: int
    num_steps: int
    head: str | None
    hidden: tuple[str, ...]
    blocks_needed: int
    blocks_free: int

    def __str__(self) -> str:
        last_step = self.first_step + self.num_steps - 1
        lines = [f"stalled: steps {self.first_step} to {last_step} ran nothing and changed nothing"]
        if self.head is not None:
            lines += [
                f"  prefill {self.head} waits in front",
                f"  -> running decodes hidden for it: {' '.join(self.hidden) or 'none'}",
                f"  -> it needs {self.blocks_needed} KV blocks, {self.blocks_free} are free",
                "  -> vLLM schedules nothing",
                "  -> whoever runs gets no token, never ends, never frees a block",
                f"  -> prefill {self.head} waits in front",
            ]
        return "\n".join(lines)

    __repr__ = __str__


def run_until_stalled(lab: Lab, patience: int = PATIENCE) -> Stall | None:
    """Step a Lab; return None once every request has ended, or a Stall.

    Args:
        lab: a Lab with requests in it.
        patience: empty steps in a row that make a stall.

    Raises:
        RuntimeError: neither happened within MAX_STEPS steps.
    """
    for _ in range(MAX_STEPS):
        if lab.step() is None:
            return None
        if stall := find_stall(lab.trace, patience):
            return stall
    raise RuntimeError(
        f"run_until_stalled: neither done nor stalled after {MAX_STEPS} steps; give fewer or "
        f"shorter requests"
    )


def find_stall(trace: Trace, patience: int = PATIENCE) -> Stall | None:
    """Return the stall that a trace ends in, or None."""
    last = trace[-patience:]
    if len(last) < patience or any(not _repeats(record, last[-1]) for record in last):
        return None
    first = len(trace) - 1
    while first and _repeats(trace[first - 1], last[-1]):
        first -= 1
    record = trace[first]
    head = record.waiting[0] if record.waiting else None
    num_tokens = 0
    if head is not None:
        num_tokens = trace.requests[head].num_prompt_tokens + len(trace.tokens()[head])
    return Stall(
        first_step=record.step,
        num_steps=len(trace) - first,
        head=head,
        hidden=record.hidden,
        blocks_needed=cdiv(num_tokens, trace.config.block_size),
        blocks_free=record.kv_blocks_free,
    )


def _repeats(record: StepRecord, other: StepRecord) -> bool:
    return record.phase == EMPTY and _queues(record) == _queues(other)


def _queues(record: StepRecord) -> tuple[object, ...]:
    return record.running, record.waiting, record.held_back, record.hidden, record.kv_blocks
