"""A trace as a file: JSON lines, one step a line, readable by a person.

The first line says what the file is and holds the engine's settings; then come the requests, one
a line, and the steps. A field that is empty, or a request's KV blocks that did not change since
the step before, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .records import RequestInfo, Scheduled, StepInputs, StepRecord, TraceConfig

FORMAT = "neuron_sched_lab.trace"
VERSION = 1

MAX_LINE_LENGTH = 64_000_000
"""Characters; a longer line is refused before it is parsed. A step of a thousand waiting requests
with names of 10,000 characters still fits."""

_Row = TypeVar("_Row", RequestInfo, StepRecord, TraceConfig)

_OPTIONAL = {f.name: f.default for f in fields(StepRecord) if f.default is not MISSING}


class Content(NamedTuple):
    """What a file holds; see `Trace` for the fields."""

    config: TraceConfig
    requests: dict[str, RequestInfo]
    records: list[StepRecord]


def write(
    path: str | Path,
    config: TraceConfig,
    requests: Iterable[RequestInfo],
    records: Iterable[StepRecord],
) -> None:
    """Write a trace to `path`, replacing it only once everything is written."""
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("w", encoding="utf-8") as file:
        for line in _lines(config, requests, records):
            file.write(json.dumps(line, separators=(", ", ": ")) + "\n")
    unfinished.replace(path)


def _lines(
    config: TraceConfig, requests: Iterable[RequestInfo], records: Iterable[StepRecord]
) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "version": VERSION, "config": asdict(config)}
    for info in requests:
        yield {"request": asdict(info)}
    held: dict[str, tuple[int, ...]] = {}
    for record in records:
        step = {f.name: getattr(record, f.name) for f in fields(StepRecord)}
        step = {k: v for k, v in step.items() if k not in _OPTIONAL or v != _OPTIONAL[k]}
        blocks = dict(record.kv_blocks)
        # null: as in the step before.
        step["kv_blocks"] = [[i, None if held.get(i) == b else b] for i, b in blocks.items()]
        held = blocks
        yield {"step": step}


def read(path: str | Path) -> Content:
    """Read a trace.

    Raises:
        ValueError: names the file, the line and the reason.
    """
    trace: Content | None = None
    held: dict[str, tuple[int, ...]] = {}
    for number, line in _numbered_lines(path):
        where = f"{path}, line {number}"
        row = _parse(line, where)
        if trace is None:
            trace = Content(_read_header(row, where), {}, [])
            continue
        try:
            if "request" in row:
                _add_request(trace.requests, _object(row, "request"))
            elif "step" in row:
                record = _read_step(_object(row, "step"), held)
                _check_place(record, trace)
                held = dict(record.kv_blocks)
                trace.records.append(record)
            else:
                raise ValueError("neither a request nor a step")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}; the file is damaged, record it anew") from error
    if trace is None:
        raise ValueError(f"{path}: the file is empty; record it anew")
    return trace


def _object(row: dict[str, Any], key: str) -> dict[str, Any]:
    """Return `row[key]`, which must be there and be an object."""
    value = row.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key}: {value!r:.60} is no JSON object")
    return value


def _add_request(requests: dict[str, RequestInfo], values: dict[str, Any]) -> None:
    info = _make(RequestInfo, values)
    if info.request_id in requests:
        raise ValueError(f"request_id: {info.request_id!r:.60} stands twice")
    requests[info.request_id] = info


def _check_place(record: StepRecord, before: Content) -> None:
    """Check a step against what stands before it in the file."""
    last_step = before.records[-1].step if before.records else 0
    if record.step <= last_step:
        raise ValueError(f"step: {record.step} must be above {last_step}, the step before it")
    scheduled = (s.request_id for s in record.scheduled)
    for request_id in (*scheduled, *record.running, *record.waiting, *record.held_back):
        if not isinstance(request_id, str) or not _is_known(request_id, before.requests):
            raise ValueError(f"{request_id!r:.60}: no request of this id stands before the step")


def _is_known(request_id: str, requests: Mapping[str, RequestInfo]) -> bool:
    # vLLM calls the answers of a request with n > 1 by its id with a number in front.
    return request_id in requests or request_id.partition("_")[2] in requests


def _numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (number, line) without ever holding more than MAX_LINE_LENGTH characters."""
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        raise ValueError(f"path: {path!r} is no file; give one that Trace.save() wrote")
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        number = 0
        while line := file.readline(MAX_LINE_LENGTH + 1):
            number += 1
            if len(line) > MAX_LINE_LENGTH:
                raise ValueError(
                    f"{path}, line {number}: longer than {MAX_LINE_LENGTH} characters; "
                    f"this is no trace"
                )
            if line.strip():
                yield number, line


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except RecursionError as error:
        raise ValueError(f"{where}: brackets are nested too deep; this is no trace") from error
    except ValueError as error:
        raise ValueError(f"{where}: no JSON ({error}); was the file cut off?") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: no JSON object; the file is damaged")
    return row


def _read_header(row: dict[str, Any], where: str) -> TraceConfig:
    if row.get("format") != FORMAT:
        raise ValueError(f"{where}: no header of format {FORMAT!r}; this is no trace")
    version = row.get("version")
    if version != VERSION:
        raise ValueError(
            f"{where}: version {version!r}, this kit reads version {VERSION}; "
            f"update neuron_sched_lab or record the trace anew"
        )
    try:
        return _make(TraceConfig, {k: _tuples(v) for k, v in _object(row, "config").items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: bad header ({error}); the file is damaged") from error


def _read_step(step: dict[str, Any], held: dict[str, tuple[int, ...]]) -> StepRecord:
    values = {name: _tuples(value) for name, value in step.items()}
    values["scheduled"] = tuple(Scheduled(*s) for s in _rows(values, "scheduled"))
    if values.get("inputs") is not None:
        values["inputs"] = StepInputs(*_rows(values, "inputs"))
    values["kv_blocks"] = tuple(
        (request_id, _same_blocks(held, request_id) if blocks is None else blocks)
        for request_id, blocks in (_rows(values, "kv_blocks") if "kv_blocks" in values else ())
    )
    return _make(StepRecord, values)


def _rows(values: dict[str, Any], key: str) -> tuple[tuple[Any, ...], ...]:
    """Return `values[key]`, which must be there and be a list of lists."""
    rows = values.get(key)
    if not isinstance(rows, tuple) or not all(isinstance(row, tuple) for row in rows):
        raise ValueError(f"{key}: {rows!r:.60} is no list of lists")
    return rows


def _same_blocks(held: dict[str, tuple[int, ...]], request_id: str) -> tuple[int, ...]:
    if request_id not in held:
        raise ValueError(f"kv_blocks: {request_id!r} has no blocks in the step before")
    return held[request_id]


_TYPES: dict[str, Any] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
}
"""By annotation; every other field is a tuple, or None where that is its default."""


def _make(cls: type[_Row], values: dict[str, Any]) -> _Row:
    """Return `cls(**values)`.

    Raises:
        TypeError: a field is missing or unknown.
        ValueError: a value has another type than its field.
    """
    row = cls(**values)
    for f in fields(cls):
        value, expected = getattr(row, f.name), _TYPES.get(str(f.type), tuple)
        if value is not f.default and (not isinstance(value, expected) or value is True):
            raise ValueError(f"{f.name}: {value!r} is not of type {f.type}")
    return row


def _tuples(value: Any) -> Any:
    """Return JSON's lists as the tuples that records are made of."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
