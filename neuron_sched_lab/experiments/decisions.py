"""What a scheduler decided in a step, why, and where two of them differ, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..trace.board import printable
from ..trace.records import DECODE, PREFILL

if TYPE_CHECKING:
    from ..trace.records import Scheduled, StepRecord
    from ..trace.trace import Trace

MAX_NAMES = 3


def describe_decision(record: StepRecord) -> str:
    """Return what the step runs, hides and preempts."""
    parts = [_prefill(s) for s in record.scheduled if s.phase == PREFILL]
    if decodes := [s.request_id for s in record.scheduled if s.phase == DECODE]:
        rows = record.decode_batch_bucket
        padded = f" (padded to {rows} rows)" if rows and rows != len(decodes) else ""
        parts.append(f"decodes {names(decodes)}{padded}")
    if not parts:
        parts.append("runs nothing")
    if record.hidden:
        parts.append(f"hides {names(record.hidden)}")
    if record.preempted:
        parts.append(f"preempts {names(record.preempted)}")
    return ", ".join(parts)


def describe_reason(record: StepRecord) -> str:
    """Return why the step is what it is, as far as the scheduler says."""
    parts = []
    num_held = record.num_held_back + record.num_waiting
    if record.hold_reason and record.held_head:
        others = f" and {num_held - 1} behind it" if num_held > 1 else ""
        parts.append(f"{printable(record.held_head)}{others} held back: {record.hold_reason}")
    elif num_held:
        waiting = [*record.held_back, *record.waiting]
        parts.append(f"{names(waiting, num_held)} waiting; this scheduler gives no reason")
    if record.held_decodes:
        parts.append(f"{names(record.held_decodes)} paused: the banker has no KV block to lend")
    if record.cause:
        parts.append(f"state {record.state}: {record.cause}")
    return "; ".join(parts)


def describe_difference(
    step: int,
    run_names: Sequence[str],
    records: Sequence[StepRecord | None],
    traces: Sequence[Trace],
    *,
    padding: bool,
) -> str | None:
    """Return how two steps of the same number differ, or None if they decide the same.

    Args:
        step: its number.
        run_names: of the two runs.
        records: the step in each, None where a run has ended.
        traces: the two runs; they tell which requests had arrived.
        padding: whether another padded size counts.
    """
    a, b = records
    if a is None or b is None:
        return None if a is b else f"only {run_names[0 if b is None else 1]} still has work"
    return (
        _different_requests(step, run_names, (a, b), traces)
        or _different_tokens(run_names, (a, b))
        or (_different_padding(run_names, (a, b)) if padding else None)
        or _different_preemption(run_names, (a, b))
    )


def _different_requests(
    step: int,
    run_names: Sequence[str],
    records: tuple[StepRecord, StepRecord],
    traces: Sequence[Trace],
) -> str | None:
    phases = [{s.request_id: s.phase for s in record.scheduled} for record in records]
    for mine, (own, other) in enumerate((phases, phases[::-1])):
        extra = [request_id for request_id in own if request_id not in other]
        if extra:
            late = _not_arrived(step, extra[0], traces[1 - mine])
            not_there = f" (not there yet for {run_names[1 - mine]})" if late else ""
            verb = f"{own[extra[0]]}s {names(extra)}{not_there}"
            if rest := [request_id for request_id in other if request_id not in own]:
                verb += f" where {run_names[1 - mine]} {other[rest[0]]}s {names(rest)}"
                return f"{run_names[mine]} {verb}"
            return f"only {run_names[mine]} {verb}"
    for request_id, phase in phases[0].items():
        if phases[1][request_id] != phase:
            request = printable(request_id)
            return f"{request} is a {phase} for {run_names[0]} and no {phase} for {run_names[1]}"
    return None


def _not_arrived(step: int, request_id: str, trace: Trace) -> bool:
    info = trace.requests.get(request_id)
    return info is None or info.arrived_before_step > step


def _different_tokens(
    run_names: Sequence[str], records: tuple[StepRecord, StepRecord]
) -> str | None:
    theirs = {s.request_id: s for s in records[1].scheduled}
    for mine in records[0].scheduled:
        other = theirs[mine.request_id]
        if mine.num_tokens != other.num_tokens:
            return (
                f"{run_names[0]} computes {mine.num_tokens} tokens of "
                f"{printable(mine.request_id)}, {run_names[1]} {other.num_tokens}"
            )
    return None


def _different_padding(
    run_names: Sequence[str], records: tuple[StepRecord, StepRecord]
) -> str | None:
    theirs = {s.request_id: s for s in records[1].scheduled}
    for mine in records[0].scheduled:
        other = theirs[mine.request_id]
        if mine.num_padded_tokens != other.num_padded_tokens:
            return (
                f"{run_names[0]} pads {printable(mine.request_id)} to {mine.num_padded_tokens} "
                f"tokens, {run_names[1]} to {other.num_padded_tokens}"
            )
    rows = [record.num_padded_tokens for record in records]
    if rows[0] != rows[1]:
        return f"{run_names[0]} pads the batch to {rows[0]} rows, {run_names[1]} to {rows[1]}"
    return None


def _different_preemption(
    run_names: Sequence[str], records: tuple[StepRecord, StepRecord]
) -> str | None:
    a, b = (set(record.preempted) for record in records)
    if a == b:
        return None
    who = run_names[0] if a - b else run_names[1]
    return f"only {who} preempts {names(sorted(a ^ b))}"


def _prefill(scheduled: Scheduled) -> str:
    padding = scheduled.num_padded_tokens != scheduled.num_tokens
    padded = f", padded to {scheduled.num_padded_tokens}" if padding else ""
    begin = scheduled.num_computed_tokens
    after = f" after {begin}" if begin else ""
    request = printable(scheduled.request_id)
    return f"prefills {request} ({scheduled.num_tokens} tokens{after}{padded})"


def names(request_ids: Sequence[str], total: int | None = None) -> str:
    """Return the first few ids and how many more there are."""
    shown = [printable(request_id) for request_id in request_ids[:MAX_NAMES]]
    more = (len(request_ids) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
