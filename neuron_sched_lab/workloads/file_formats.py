"""Reads public trace formats, and writes and reads the kit's own.

    azure     Azure LLM inference traces 2023 and 2024, CSV:
              TIMESTAMP, ContextTokens, GeneratedTokens
    burstgpt  BurstGPT, CSV; vLLM's `--dataset-name burstgpt`:
              Timestamp (s), Model, Request tokens, Response tokens
    mooncake  Mooncake, JSON lines; vLLM's `--dataset-name timed_trace`:
              timestamp (ms), input_length, output_length, hash_ids (one for 512 tokens)
    sharegpt  ShareGPT, one JSON array; vLLM's `--dataset-name sharegpt`:
              conversations, of which the first question and the length of its answer
    custom    vLLM's `--dataset-name custom`, JSON lines: prompt, output_tokens
    own       what `write` writes, JSON lines

vLLM's other data sets come from a hub or are made up on the fly; for those of its `random` and
`prefix_repetition` kind see `generators`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .arrivals import with_poisson_arrivals
from .file_rows import (
    BadRowError,
    Row,
    csv_rows,
    int_list,
    json_array_rows,
    json_line_rows,
    json_object,
    seconds,
    show,
    text,
    timestamp,
    token_count,
)
from .request import HASH_BLOCK_TOKENS, WorkloadRequest

FORMAT = "neuron_sched_lab.workload"
VERSION = 1

CHARS_PER_TOKEN = 4
"""Rule of thumb for English text, used where no tokenizer is given."""

CountTokens = Callable[[str], int]


def read(
    path: str | Path,
    file_format: str = "auto",
    *,
    on_bad_row: str = "error",
    max_requests: int | None = None,
    model: str | None = None,
    count_tokens: CountTokens | None = None,
    requests_per_second: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Read a trace file; return the fields of its `Workload`.

    Args:
        path: the file.
        file_format: one of the list above, or "auto" to judge by the file's first characters.
        on_bad_row: "error", or "skip" to leave bad rows out and count them in `num_skipped`.
        max_requests: stop after so many.
        model: keep only BurstGPT's rows of this model (vLLM keeps "GPT-4").
        count_tokens: a tokenizer's count, for formats that hold text; by default four characters
            are a token.
        requests_per_second: Poisson arrivals for formats that hold no times (sharegpt, custom);
            without it, all their requests arrive at once.
        seed: of those arrivals.

    Raises:
        ValueError: names the file, the line, the column and the reason.
    """
    if on_bad_row not in {"error", "skip"}:
        raise ValueError(f'on_bad_row: {on_bad_row!r} must be "error" or "skip"')
    if file_format == "auto":
        file_format = _detect(path)
    if file_format not in FORMATS:
        raise ValueError(
            f"file_format: {file_format!r} is none of {', '.join(FORMATS)}; leave it out to "
            f"judge by the file"
        )
    if model is not None and file_format != "burstgpt":
        raise ValueError(f"model: {file_format} files have no such column; leave it out")
    layout = FORMATS[file_format]
    if requests_per_second is not None and layout.has_times:
        raise ValueError(
            f"requests_per_second: {path} holds arrival times; use scale() to change the rate"
        )
    rows = layout.rows(path)
    header = _read_header(rows, path) if file_format == "own" else {}
    if model is not None:
        rows = (row for row in rows if row.content["Model"] == model)
    parse = partial(layout.parse, count_tokens or _estimate_tokens)
    requests, num_skipped = _parse_rows(rows, parse, on_bad_row == "skip", max_requests)
    if file_format == "own":
        return {"requests": tuple(requests), **_own_attributes(header, path, num_skipped)}
    if requests_per_second is not None:
        requests = with_poisson_arrivals(requests, requests_per_second, seed=seed)
    return {
        "name": Path(path).stem,
        "requests": _from_zero(requests),
        "num_skipped": num_skipped,
    }


def write(path: str | Path, requests: Iterable[WorkloadRequest], **attributes: Any) -> None:
    """Write a workload as JSON lines, replacing `path` only once everything is written.

    Args:
        path: the file.
        requests: in order of arrival.
        attributes: the other fields of `Workload`.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    empty = {"after": None, "prefix_hash_ids": (), "prompt_token_ids": None, "prompt": None}
    header = {"format": FORMAT, "version": VERSION, **attributes}
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        for request in requests:
            row = {k: v for k, v in asdict(request).items() if k not in empty or v != empty[k]}
            file.write(json.dumps(row) + "\n")
    unfinished.replace(path)


def _from_zero(requests: list[WorkloadRequest]) -> tuple[WorkloadRequest, ...]:
    """Return `requests` in order of arrival, the first at 0."""
    ordered = sorted(requests, key=lambda r: r.arrival_seconds)
    start = ordered[0].arrival_seconds if ordered else 0.0
    return tuple(replace(r, arrival_seconds=r.arrival_seconds - start) for r in ordered)


def _parse_rows(
    rows: Iterator[Row],
    parse: Callable[[Row], WorkloadRequest],
    skip_bad_rows: bool,
    max_requests: int | None,
) -> tuple[list[WorkloadRequest], int]:
    """Return the requests and how many rows were skipped."""
    requests: list[WorkloadRequest] = []
    num_skipped = 0
    for row in rows:
        if max_requests is not None and len(requests) >= max_requests:
            break
        try:
            requests.append(parse(row))
        except BadRowError as error:
            if not skip_bad_rows:
                raise ValueError(
                    f'{row.place}, {error}; mend it, or read with on_bad_row="skip" '
                    f"(command line: --skip-bad-rows)"
                ) from None
            num_skipped += 1
    return requests, num_skipped


# One function for each format: from a row to a request


def _azure_request(_count_tokens: CountTokens, row: Row) -> WorkloadRequest:
    """2023 has seven digits of a second; 2024 a UTC offset, and sometimes no fraction."""
    return WorkloadRequest(
        request_id=f"r{row.number}",
        arrival_seconds=timestamp(row.content, "TIMESTAMP"),
        num_prompt_tokens=token_count(row.content, "ContextTokens"),
        num_output_tokens=token_count(row.content, "GeneratedTokens"),
    )


def _burstgpt_request(_count_tokens: CountTokens, row: Row) -> WorkloadRequest:
    """An answer of 0 tokens is a request that failed: a bad row."""
    return WorkloadRequest(
        request_id=f"r{row.number}",
        arrival_seconds=seconds(row.content, "Timestamp"),
        num_prompt_tokens=token_count(row.content, "Request tokens"),
        num_output_tokens=token_count(row.content, "Response tokens"),
    )


def _mooncake_request(_count_tokens: CountTokens, row: Row) -> WorkloadRequest:
    values = json_object(row.content)
    return WorkloadRequest(
        request_id=f"r{row.number}",
        arrival_seconds=seconds(values, "timestamp") / 1000,
        num_prompt_tokens=token_count(values, "input_length"),
        num_output_tokens=token_count(values, "output_length"),
        prefix_hash_ids=int_list(values, "hash_ids"),
    )


def _custom_request(count_tokens: CountTokens, row: Row) -> WorkloadRequest:
    values = json_object(row.content)
    prompt = text(values, "prompt")
    return WorkloadRequest(
        request_id=f"r{row.number}",
        arrival_seconds=0.0,
        num_prompt_tokens=max(1, count_tokens(prompt)),
        num_output_tokens=token_count(values, "output_tokens"),
        prompt=prompt,
    )


def _sharegpt_request(count_tokens: CountTokens, row: Row) -> WorkloadRequest:
    turns = row.content.get("conversations") if isinstance(row.content, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:  # noqa: PLR2004  (a question, an answer)
        raise BadRowError("conversations", f"{show(turns)} holds no question and answer")
    question, answer = (text(turn, "value") for turn in turns[:2])
    return WorkloadRequest(
        request_id=f"r{row.number}",
        arrival_seconds=0.0,
        num_prompt_tokens=max(1, count_tokens(question)),
        num_output_tokens=max(1, count_tokens(answer)),
        prompt=question,
    )


def _own_request(_count_tokens: CountTokens, row: Row) -> WorkloadRequest:
    values = json_object(row.content)
    if unknown := set(values) - set(WorkloadRequest.__dataclass_fields__):
        raise BadRowError(min(unknown), "is no known key")
    has_ids = values.get("prompt_token_ids") is not None
    return WorkloadRequest(
        request_id=text(values, "request_id"),
        arrival_seconds=seconds(values, "arrival_seconds"),
        num_prompt_tokens=token_count(values, "num_prompt_tokens"),
        num_output_tokens=token_count(values, "num_output_tokens"),
        after=text(values, "after") if values.get("after") is not None else None,
        prefix_hash_ids=int_list(values, "prefix_hash_ids"),
        prompt_token_ids=int_list(values, "prompt_token_ids") if has_ids else None,
        prompt=text(values, "prompt") if values.get("prompt") is not None else None,
    )


class _Format(NamedTuple):
    rows: Callable[[str | Path], Iterator[Row]]
    parse: Callable[..., WorkloadRequest]
    has_times: bool


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Model", "Request tokens", "Response tokens")

FORMATS = {
    "azure": _Format(partial(csv_rows, columns=_AZURE), _azure_request, has_times=True),
    "burstgpt": _Format(partial(csv_rows, columns=_BURSTGPT), _burstgpt_request, has_times=True),
    "mooncake": _Format(json_line_rows, _mooncake_request, has_times=True),
    "sharegpt": _Format(json_array_rows, _sharegpt_request, has_times=False),
    "custom": _Format(json_line_rows, _custom_request, has_times=False),
    "own": _Format(json_line_rows, _own_request, has_times=True),
}


def _detect(path: str | Path) -> str:
    """Judge a file's format by its first characters."""
    with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
        start = file.read(4096).lstrip()
    if start.startswith("["):
        return "sharegpt"
    if not start:
        raise ValueError(f"{path}: the file is empty; give a trace, or write this one again")
    first_line = start.partition("\n")[0]
    marks = {
        f'"{FORMAT}"': "own",
        '"input_length"': "mooncake",
        '"prompt"': "custom",
        "ContextTokens": "azure",
        "Request tokens": "burstgpt",
    }
    for mark, name in marks.items():
        if mark in first_line:
            return name
    raise ValueError(
        f"{path}, line 1: {show(first_line)} begins no known format; give file_format (command "
        f"line: --format), one of {', '.join(FORMATS)}"
    )


def _read_header(rows: Iterator[Row], path: str | Path) -> dict[str, Any]:
    first = next(rows, None)
    try:
        header = {} if first is None else json_object(first.content)
    except BadRowError:
        header = {}
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise ValueError(
            f"{path}, line 1: no header of format {FORMAT!r}, version {VERSION}; write the "
            f"workload anew"
        )
    return header


def _own_attributes(header: dict[str, Any], path: str | Path, num_skipped: int) -> dict[str, Any]:
    before = header.get("num_skipped", 0)
    block = header.get("hash_block_tokens", HASH_BLOCK_TOKENS)
    if not isinstance(before, int) or not isinstance(block, int) or block < 1:
        raise ValueError(f"{path}, line 1: the header's numbers are none; write the workload anew")
    return {
        "name": str(header.get("name", Path(path).stem)),
        "num_skipped": before + num_skipped,
        "hash_block_tokens": block,
    }


def _estimate_tokens(prompt: str) -> int:
    return round(len(prompt) / CHARS_PER_TOKEN)
