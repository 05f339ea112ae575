"""Reads rows of other tools' files and the values in them; errors name the place.

A line, a value and a nesting depth have limits; nothing in a file is executed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

MAX_LINE_LENGTH = 4_000_000
"""Characters; a longer line is refused before it is parsed."""

MAX_JSON_BYTES = 2 * 2**30
"""A larger JSON array, which has to be read as a whole, is refused."""

MAX_TOKENS = 100_000_000
"""A larger token count is a mistake in the file."""


class BadRowError(ValueError):
    """One row cannot be used; says which column, and why."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r}: {reason}")


class Row(NamedTuple):
    """A row as it stands in the file.

    Attributes:
        place: file and line, for an error text.
        number: counts rows from 0.
        content: a CSV row's dict, a line of JSON, or an entry of a JSON array.
    """

    place: str
    number: int
    content: Any


def csv_rows(path: str | Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of a CSV file that has at least `columns`.

    Raises:
        ValueError: a column is missing, a line is too long, or it is no CSV.
    """
    reader = csv.DictReader(numbered_lines(path), restval="")
    try:
        if missing := [c for c in columns if c not in (reader.fieldnames or ())]:
            raise ValueError(
                f"{path}, line 1: no column {missing[0]!r}, found {show(reader.fieldnames)}; is it "
                f"another format?"
            )
        for number, row in enumerate(reader):
            yield Row(f"{path}, line {reader.line_num}", number, row)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: no CSV ({error})") from error


def json_line_rows(path: str | Path) -> Iterator[Row]:
    """Yield the lines of a file of JSON lines, not parsed; see `json_object`."""
    for index, line in enumerate(numbered_lines(path)):
        if line.strip():
            yield Row(f"{path}, line {index + 1}", index, line)


def json_array_rows(path: str | Path) -> Iterator[Row]:
    """Yield the entries of a file that is one JSON array.

    Raises:
        ValueError: the file is too large, or no JSON array.
    """
    if (size := Path(path).stat().st_size) > MAX_JSON_BYTES:
        raise ValueError(f"{path}: {size} bytes; a JSON array may have {MAX_JSON_BYTES}, split it")
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON ({error})") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path}: no JSON array of conversations")
    for number, entry in enumerate(entries):
        yield Row(f"{path}, entry {number + 1}", number, entry)


def numbered_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines without ever holding more than MAX_LINE_LENGTH characters."""
    # utf-8-sig: spreadsheets put a byte-order mark in front.
    with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
        number = 0
        while line := file.readline(MAX_LINE_LENGTH + 1):
            number += 1
            if len(line) > MAX_LINE_LENGTH:
                raise ValueError(
                    f"{path}, line {number}: longer than {MAX_LINE_LENGTH} characters; this is "
                    f"no trace"
                )
            yield line


def json_object(line: str) -> dict[str, Any]:
    """Return the object of a line of JSON.

    Raises:
        BadRowError: the line is no object, or nested too deep for Python's parser.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRowError("(whole line)", f"no JSON ({error})") from None
    if not isinstance(row, dict):
        raise BadRowError("(whole line)", f"{show(row)} is no JSON object")
    return row


_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def timestamp(row: dict[str, Any], column: str) -> float:
    """Return a date and time as seconds; Python 3.10 itself reads at most six digits."""
    value = row[column]
    match = _TIMESTAMP.fullmatch(value.strip())
    if match is None:
        raise BadRowError(column, f"{show(value)} is no time such as 2023-11-16 18:15:46.6805900")
    date, time, fraction, offset = match.groups()
    offset = "+00:00" if offset in {None, "Z"} else offset
    try:
        whole = datetime.fromisoformat(f"{date}T{time}{offset}").astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise BadRowError(column, f"{show(value)}: {error}") from error
    return whole.timestamp() + float(fraction or 0)


def seconds(row: dict[str, Any], column: str) -> float:
    """Return a finite time of at least 0."""
    value: Any = row.get(column)
    try:
        # bool is an int in Python; True is no time.
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise BadRowError(column, f"{show(value)} is no finite time of at least 0")
    return number


def token_count(row: dict[str, Any], column: str) -> int:
    """Return a count from 1 to MAX_TOKENS, given as an int or as its digits."""
    value = count = row.get(column)
    if isinstance(value, str) and value.isascii() and value.strip().isdigit():
        # Longer digits are too large in any case, and slow to convert.
        count = int(value.strip()[:20])
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_TOKENS:
        raise BadRowError(column, f"{show(value)} is no token count from 1 to {MAX_TOKENS}")
    return count


def int_list(row: dict[str, Any], column: str) -> tuple[int, ...]:
    """Return whole numbers of at least 0; none if the column is missing."""
    values = row.get(column, ())
    if not isinstance(values, (list, tuple)):
        raise BadRowError(column, f"{show(values)} is no list")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise BadRowError(column, f"{show(value)} in it is no whole number from 0 to 2**40")
    return tuple(values)


def text(row: Any, column: str) -> str:
    """Return a text that is not empty."""
    value = row.get(column) if isinstance(row, dict) else None
    if not isinstance(value, str) or not value:
        raise BadRowError(column, f"{show(value)} is no text")
    return value


def show(value: object) -> str:
    """Return a value for an error text, whatever a file put there."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."  # noqa: PLR2004  (a line of text)
