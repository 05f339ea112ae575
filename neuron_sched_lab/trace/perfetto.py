"""A trace as trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One track for the scheduler, one slice a step, with everything that explains the step in its
arguments; one track a request; counters for KV blocks and queues. The steps of a live run are as
long as measured: schedule() plus the model.

Format: Google's "Trace Event Format" (phases X, C and M).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import RequestInfo, StepRecord

SCHEDULER_TRACK, FIRST_REQUEST_TRACK = 1, 2
SCHEDULER_PID = 1
MIN_STEP_US = 1.0
"""A step without measured time (an empty one) still gets a slice that one can click."""


def write(
    path: str | Path,
    scheduler: str,
    requests: Mapping[str, RequestInfo],
    records: Iterable[StepRecord],
) -> None:
    """Write a run to `path`.

    Args:
        path: the file.
        scheduler: name of the scheduler class.
        requests: what was added, by id.
        records: one a step.
    """
    tracks = {i: n for n, i in enumerate(requests, start=FIRST_REQUEST_TRACK)}
    events = [*_names(scheduler, tracks), *_events(records, tracks)]
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    Path(path).write_text(text, encoding="utf-8")


def _names(scheduler: str, tracks: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", 0, scheduler)
    yield _meta("thread_name", SCHEDULER_TRACK, "steps")
    for request_id, number in tracks.items():
        yield _meta("thread_name", number, request_id)


def _meta(name: str, track: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": SCHEDULER_PID, "tid": track, "name": name, "args": {"name": value}}


def _events(
    records: Iterable[StepRecord], tracks: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    now = 0.0
    for record in records:
        duration = max((record.schedule_seconds + record.model_seconds) * 1e6, MIN_STEP_US)
        yield _slice(record.state or record.phase, SCHEDULER_TRACK, now, duration, _args(record))
        for s in record.scheduled:
            if s.request_id in tracks:
                args = {
                    "num_computed_tokens": s.num_computed_tokens,
                    "num_tokens": s.num_tokens,
                    "num_padded_tokens": s.num_padded_tokens,
                }
                yield _slice(s.phase, tracks[s.request_id], now, duration, args)
        yield _counter("KV blocks", now, used=record.kv_blocks_used, free=record.kv_blocks_free)
        yield _counter(
            "requests",
            now,
            running=len(record.running),
            hidden=len(record.hidden),
            waiting=record.num_waiting + record.num_held_back,
        )
        now += duration


def _args(record: StepRecord) -> dict[str, Any]:
    """Return what explains a step."""
    return {
        "step": record.step,
        "phase": record.phase,
        "cause": record.cause,
        "shape": record.shape,
        "num_tokens": record.num_tokens,
        "num_padded_tokens": record.num_padded_tokens,
        "batch": [s.request_id for s in record.scheduled],
        "decode_batch_bucket": record.decode_batch_bucket,
        "hidden": record.hidden,
        "hold_reason": record.hold_reason,
        "held_head": record.held_head,
        "kv_blocks_used": record.kv_blocks_used,
        "schedule_us": record.schedule_seconds * 1e6,
    }


def _slice(
    name: str, track: int, start: float, duration: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": SCHEDULER_PID,
        "tid": track,
        "name": name,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def _counter(name: str, now: float, **values: int) -> dict[str, Any]:
    return {"ph": "C", "pid": SCHEDULER_PID, "name": name, "ts": now, "args": values}
