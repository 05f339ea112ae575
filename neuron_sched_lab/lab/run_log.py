"""RunLog: the times and counts of a run in columns, small enough for millions of steps.

A simulation and a live replay write the same log, metrics are computed from it and from nothing
else. Where a Trace tells what happened in each step, the log tells when, and in how many numbers
as are needed for that. Steps that follow each other and are alike are one row, a *run* of steps:
only their ends, and the KV blocks in use, are kept one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .trace import DECODE, EMPTY, MIXED, PREFILL

if TYPE_CHECKING:
    from .trace import StepRecord, Trace

PHASES = (PREFILL, DECODE, MIXED, EMPTY)
"""A run's phase is stored as its place in this tuple."""

_PHASE_CODES = {phase: code for code, phase in enumerate(PHASES)}

NO_TIME = -1.0
"""Stands for a time that has not come."""


def _ints() -> array:
    return array("q")


def _floats() -> array:
    return array("d")


@dataclass
class RunLog:
    """Columns of a run; times in seconds since its start.

    Attributes:
        request_ids: of every request that arrived, in order of arrival; a request is its index.
        arrival: when each arrived.
        first_scheduled: start of the first step that computed any of its tokens, or NO_TIME.
        finished: when it ended, or NO_TIME.
        num_prompt_tokens: its prompt length.
        run_start: start of the first step of each run of steps.
        run_steps: how many steps it is.
        run_phase: index into PHASES.
        run_tokens: actual tokens of each of its steps.
        run_padded_tokens: tokens of each step's tensors.
        run_rows: requests in each step.
        run_row_bucket: rows of the padded decode batch; equal to `run_rows` where none is padded.
        run_running: running requests, hidden ones included.
        run_waiting: waiting requests, held-back ones included.
        run_preempted: requests that lost their KV blocks.
        token_rows: indices of the requests that got a token in each step of a run, run after run.
        token_offsets: where a run's indices begin in `token_rows`.
        step_end: end of each step.
        step_kv_used: KV blocks in use in each step.
        kv_blocks_total: usable KV blocks.
        num_refused: requests that arrived and were not taken; they have no index.
    """

    kv_blocks_total: int = 0
    num_refused: int = 0
    request_ids: list[str] = field(default_factory=list)
    arrival: array = field(default_factory=_floats)
    first_scheduled: array = field(default_factory=_floats)
    finished: array = field(default_factory=_floats)
    num_prompt_tokens: array = field(default_factory=_ints)
    run_start: array = field(default_factory=_floats)
    run_steps: array = field(default_factory=_ints)
    run_phase: array = field(default_factory=_ints)
    run_tokens: array = field(default_factory=_ints)
    run_padded_tokens: array = field(default_factory=_ints)
    run_rows: array = field(default_factory=_ints)
    run_row_bucket: array = field(default_factory=_ints)
    run_running: array = field(default_factory=_ints)
    run_waiting: array = field(default_factory=_ints)
    run_preempted: array = field(default_factory=_ints)
    token_rows: array = field(default_factory=_ints)
    token_offsets: array = field(default_factory=_ints)
    step_end: array = field(default_factory=_floats)
    step_kv_used: array = field(default_factory=_ints)

    def __post_init__(self) -> None:
        self._index = {request_id: i for i, request_id in enumerate(self.request_ids)}

    @property
    def num_steps(self) -> int:
        """Steps of all runs."""
        return len(self.step_end)

    @property
    def index(self) -> Mapping[str, int]:
        """A request's index by its id."""
        return self._index

    def add_request(self, request_id: str, arrival: float, num_prompt_tokens: int) -> int:
        """Add a request that arrived at `arrival`; return its index."""
        index = self._index[request_id] = len(self.request_ids)
        self.request_ids.append(request_id)
        self.arrival.append(arrival)
        self.first_scheduled.append(NO_TIME)
        self.finished.append(NO_TIME)
        self.num_prompt_tokens.append(num_prompt_tokens)
        return index

    def add_run(
        self,
        phase: str,
        start: float,
        ends: Sequence[float],
        *,
        num_tokens: int,
        num_padded_tokens: int,
        num_rows: int,
        row_bucket: int,
        num_running: int,
        num_waiting: int,
        kv_used: Sequence[int],
        token_ids: Iterable[str],
        num_preempted: int = 0,
    ) -> None:
        """Add `len(ends)` steps that are alike.

        Args:
            phase: as in StepRecord.
            start: start of the first step; the others start where their predecessor ends.
            ends: end of each step.
            num_tokens: actual tokens of each step.
            num_padded_tokens: tokens of each step's tensors.
            num_rows: requests in each step.
            row_bucket: rows of the padded decode batch.
            num_running: running requests.
            num_waiting: waiting requests.
            kv_used: KV blocks in use in each step.
            token_ids: ids of the requests that got a token in each step.
            num_preempted: requests that lost their KV blocks, in the first step.
        """
        self.run_start.append(start)
        self.run_steps.append(len(ends))
        self.run_phase.append(_PHASE_CODES[phase])
        self.run_tokens.append(num_tokens)
        self.run_padded_tokens.append(num_padded_tokens)
        self.run_rows.append(num_rows)
        self.run_row_bucket.append(row_bucket)
        self.run_running.append(num_running)
        self.run_waiting.append(num_waiting)
        self.run_preempted.append(num_preempted)
        self.token_offsets.append(len(self.token_rows))
        self.token_rows.extend(map(self._index.__getitem__, token_ids))
        self.step_end.extend(ends)
        self.step_kv_used.extend(kv_used)

    def add_record(self, record: StepRecord, start: float, end: float) -> None:
        """Add a step that a Trace recorded, whose requests were added before."""
        for scheduled in record.scheduled:
            index = self._index[scheduled.request_id]
            if self.first_scheduled[index] == NO_TIME:
                self.first_scheduled[index] = start
        for request_id, _ in record.finished:
            self.finished[self._index[request_id]] = end
        num_rows = len(record.scheduled)
        self.add_run(
            record.phase,
            start,
            (end,),
            num_tokens=record.num_tokens,
            num_padded_tokens=record.num_padded_tokens,
            num_rows=num_rows,
            row_bucket=record.decode_batch_bucket or num_rows,
            num_running=len(record.running),
            num_waiting=record.num_waiting + record.num_held_back,
            kv_used=(record.kv_blocks_used,),
            token_ids=[s.request_id for s in record.scheduled if s.new_token_ids],
            num_preempted=len(record.preempted),
        )

    @classmethod
    def from_trace(cls, trace: Trace) -> RunLog:
        """Return the log of a recorded run, as if its steps had followed each other at once.

        A trace holds how long each step took, but not when it began; a request counts as having
        arrived at the end of the step before the first that could schedule it.
        """
        log = cls(kv_blocks_total=trace.config.kv_blocks_total)
        arriving: dict[int, list[str]] = {}
        for info in trace.requests.values():
            arriving.setdefault(info.arrived_before_step, []).append(info.request_id)
        now = 0.0
        for record in trace:
            for step in sorted(s for s in arriving if s <= record.step):
                for request_id in arriving.pop(step):
                    num_prompt_tokens = trace.requests[request_id].num_prompt_tokens
                    log.add_request(request_id, now, num_prompt_tokens)
            end = now + record.schedule_seconds + record.model_seconds
            log.add_record(record, now, end)
            now = end
        return log
