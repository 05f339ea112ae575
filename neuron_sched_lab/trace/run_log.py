"""RunLog: the times and counts of a run, small enough for millions of steps.

A simulation and a live replay write the same log, metrics are computed from it and from nothing
else. A Trace tells what happened in each step; the log tells when, and keeps only the counts that
metrics need. Steps that follow each other and are alike are one row, a *run* of steps:
only their ends, and the KV blocks in use, are kept one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .records import DECODE, EMPTY, MIXED, PREFILL

if TYPE_CHECKING:
    from .records import StepRecord
    from .trace import Trace

PHASES = (PREFILL, DECODE, MIXED, EMPTY)

NO_TIME = -1.0
"""Stands for a time that has not come."""


def _ints() -> array:
    return array("q")


def _floats() -> array:
    return array("d")


class StepRun(NamedTuple):
    """Steps that follow each other and are alike.

    Attributes:
        start: start of the first step; the others start where their predecessor ends.
        num_steps: how many there are.
        phase: as in StepRecord.
        num_tokens: actual tokens of each step.
        num_padded_tokens: tokens of each step's tensors.
        num_rows: requests in each step.
        row_bucket: rows of the padded decode batch; equal to `num_rows` where none is padded.
        num_running: running requests, hidden ones included.
        num_waiting: waiting requests, held-back ones included.
        num_preempted: requests that lost their KV blocks, in the first step.
        token_offset: where in RunLog.token_rows its requests begin.
    """

    start: float
    num_steps: int
    phase: str
    num_tokens: int
    num_padded_tokens: int
    num_rows: int
    row_bucket: int
    num_running: int
    num_waiting: int
    num_preempted: int
    token_offset: int


@dataclass
class RunLog:
    """Times and counts of a run; times in seconds since its start.

    Attributes:
        request_ids: of every request that arrived, in order of arrival; a request is its index.
        arrival: when each arrived.
        first_scheduled: start of the first step that computed any of its tokens, or NO_TIME.
        finished: when it ended, or NO_TIME.
        num_prompt_tokens: its prompt length.
        runs: all steps, in runs of steps that are alike.
        token_rows: indices of the requests that got a token in each step of a run, run after run.
        step_end: end of each step.
        step_kv_used: KV blocks in use in each step.
        kv_blocks_total: usable KV blocks.
        num_refused: requests that arrived and were not taken; they have no index.
        intake_seconds: time that the engine spent, between steps, on taking requests in.
    """

    kv_blocks_total: int = 0
    num_refused: int = 0
    intake_seconds: float = 0.0
    request_ids: list[str] = field(default_factory=list)
    arrival: array = field(default_factory=_floats)
    first_scheduled: array = field(default_factory=_floats)
    finished: array = field(default_factory=_floats)
    num_prompt_tokens: array = field(default_factory=_ints)
    runs: list[StepRun] = field(default_factory=list)
    token_rows: array = field(default_factory=_ints)
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
        run: StepRun,
        ends: Sequence[float],
        kv_used: Sequence[int],
        token_ids: Iterable[str],
    ) -> None:
        """Add steps that are alike.

        Args:
            run: what they are; its `token_offset` is where `token_rows` ends now.
            ends: end of each step.
            kv_used: KV blocks in use in each step.
            token_ids: ids of the requests that got a token in each step.
        """
        self.runs.append(run)
        # A list at once takes a third of the time that its numbers take one by one.
        self.token_rows.fromlist(list(map(self._index.__getitem__, token_ids)))
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
            StepRun(
                start=start,
                num_steps=1,
                phase=record.phase,
                num_tokens=record.num_tokens,
                num_padded_tokens=record.num_padded_tokens,
                num_rows=num_rows,
                row_bucket=record.decode_batch_bucket or num_rows,
                num_running=len(record.running),
                num_waiting=record.num_waiting + record.num_held_back,
                num_preempted=len(record.preempted),
                token_offset=len(self.token_rows),
            ),
            (end,),
            (record.kv_blocks_used,),
            [s.request_id for s in record.scheduled if s.new_token_ids],
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
