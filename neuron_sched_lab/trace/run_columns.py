"""The columns of a RunLog as numpy arrays and DataFrames: what metrics and plots compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .records import DECODE, EMPTY
from .run_log import NO_TIME, StepRun

if TYPE_CHECKING:
    from pandas import DataFrame

    from .run_log import RunLog

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


_KINDS = dict.fromkeys(StepRun._fields, np.int64) | {"start": np.float64, "phase": "U8"}


class Runs:
    """The log's runs of steps as numpy columns."""

    def __init__(self, log: RunLog) -> None:
        columns = {
            name: np.array([run[place] for run in log.runs], dtype=kind)
            for place, (name, kind) in enumerate(_KINDS.items())
        }
        self.start: Floats = columns["start"]
        self.steps: Ints = columns["num_steps"]
        self.phase: NDArray[np.str_] = columns["phase"]
        self.tokens: Ints = columns["num_tokens"]
        self.padded_tokens: Ints = columns["num_padded_tokens"]
        self.rows: Ints = columns["num_rows"]
        self.row_bucket: Ints = columns["row_bucket"]
        self.running: Ints = columns["num_running"]
        self.waiting: Ints = columns["num_waiting"]
        self.preempted: Ints = columns["num_preempted"]
        self.token_offset: Ints = columns["token_offset"]
        self.step_end = np.array(log.step_end)
        self.last_step = np.cumsum(self.steps) - 1
        self.first_step = self.last_step - self.steps + 1
        self.first_end = self.step_end[self.first_step]
        self.end = self.step_end[self.last_step]
        step_start = np.concatenate([[0.0], self.step_end[:-1]])[: len(self.step_end)]
        step_start[self.first_step] = self.start
        self.step_seconds = self.step_end - step_start

    def per_step(self, column: Any) -> Any:
        """Return a column of runs as a column of steps."""
        return np.repeat(column, self.steps)

    def padding_share(self, chosen: Any) -> float:
        """Return the padding tokens as a share of all in the chosen runs."""
        tokens = (self.tokens * self.steps)[chosen].sum()
        padded = (self.padded_tokens * self.steps)[chosen].sum()
        return ratio(padded - tokens, padded)

    @property
    def num_shapes(self) -> int:
        """Distinct shapes, as StepRecord.shape has them."""
        columns = zip(self.phase, self.padded_tokens, self.rows, self.row_bucket, strict=True)
        return len(
            {
                (phase, bucket) if phase == DECODE else (phase, padded, rows)
                for phase, padded, rows, bucket in columns
                if phase != EMPTY
            }
        )


class Tokens:
    """When each request got its tokens, and the gaps between them."""

    def __init__(self, log: RunLog, runs: Runs) -> None:
        request = np.array(log.token_rows, dtype=np.int64)
        num_rows = np.diff(np.append(runs.token_offset, len(request)))
        run: Ints = np.repeat(np.arange(len(num_rows)), num_rows)
        order = np.argsort(request, kind="stable")
        request, run = request[order], run[order]
        num_requests = len(log.request_ids)
        self.count = np.bincount(request, weights=runs.steps[run], minlength=num_requests).astype(
            np.int64
        )
        self.first = np.full(num_requests, NO_TIME)
        self.last = np.full(num_requests, NO_TIME)
        # In order of time, so what is written last is the last.
        self.last[request] = runs.end[run]
        self.first[request[::-1]] = runs.first_end[run[::-1]]
        # Gaps inside a run are alike for all of its requests; those between two runs are not.
        follows = np.flatnonzero(request[1:] == request[:-1])
        before, after = run[follows], run[follows + 1]
        inside: NDArray[np.bool_] = np.ones(len(runs.step_end), dtype=bool)
        inside[runs.first_step] = False
        self.gap = np.concatenate(
            [runs.step_seconds[inside], runs.first_end[after] - runs.end[before]]
        )
        self.gap_count = np.concatenate(
            [np.repeat(num_rows, runs.steps)[inside], np.ones(len(follows), dtype=np.int64)]
        )
        stall = runs.start[after] - runs.end[before]
        self.stall = stall[stall > 0]
        self.stall_count: Ints = np.ones(len(self.stall), dtype=np.int64)


def requests_frame(log: RunLog) -> DataFrame:
    """Return one row for each request that arrived: times in seconds, NaN where none came."""
    from pandas import DataFrame

    runs = Runs(log)
    tokens = Tokens(log, runs)
    frame = DataFrame(
        {
            "request_id": log.request_ids,
            "num_prompt_tokens": np.array(log.num_prompt_tokens),
            "num_output_tokens": tokens.count,
            "arrival": np.array(log.arrival),
            "first_scheduled": _known(log.first_scheduled),
            "first_token": _known(tokens.first),
            "last_token": _known(tokens.last),
            "finished": _known(log.finished),
        }
    )
    frame["queue"] = frame["first_scheduled"] - frame["arrival"]
    frame["ttft"] = frame["first_token"] - frame["arrival"]
    several = frame["num_output_tokens"].where(frame["num_output_tokens"] > 1) - 1
    frame["tpot"] = (frame["last_token"] - frame["first_token"]) / several
    frame["e2e"] = frame["finished"] - frame["arrival"]
    return frame


def steps_frame(log: RunLog) -> DataFrame:
    """Return one row for each step: its phase, times in seconds, counts."""
    from pandas import DataFrame

    runs = Runs(log)
    return DataFrame(
        {
            "phase": runs.per_step(runs.phase),
            "start": runs.step_end - runs.step_seconds,
            "end": runs.step_end,
            "tokens": runs.per_step(runs.tokens),
            "padded_tokens": runs.per_step(runs.padded_tokens),
            "rows": runs.per_step(runs.rows),
            "row_bucket": runs.per_step(runs.row_bucket),
            "running": runs.per_step(runs.running),
            "waiting": runs.per_step(runs.waiting),
            "kv_blocks_used": np.array(log.step_kv_used),
        }
    )


def _known(times: Any) -> Floats:
    """Return times with NaN for those that did not come."""
    array = np.array(times, dtype=np.float64)
    array[array == NO_TIME] = np.nan
    return array


def ratio(part: Any, whole: Any) -> float:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return float(part / whole) if whole else 0.0
