"""The results file of a sweep: JSON lines, one a finished cell, safe against being killed.

    {"format": "neuron_sched_lab sweep", "version": 1}
    {"key": "5f1c...", "cell": {"max_num_seqs": 8}, "status": "ok", "figures": {"ttft_p50": 0.3}}
    {"key": "99ab...", "cell": {"max_num_seqs": 0}, "status": "failed", "error": "ValueError: ..."}

A line is written whole and brought to the disk before the next cell is waited for. If the process
is killed in the middle of one, that line is cut off when the file is opened next. Of two lines with
one key the later counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

HEADER = {"format": "neuron_sched_lab sweep", "version": 1}
OK, FAILED = "ok", "failed"

MAX_BYTES = 2**28
"""Largest file that is read: hundreds of thousands of cells."""

MAX_LINE_BYTES = 2**20
"""Longest line; that of a cell has a few thousand."""


class ResultsFile:
    """Holds what is in a results file, and appends to it.

    Use it in a `with`. While it is open no other sweep can open it.

    Attributes:
        lines: the latest line of each key.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it.

        Raises:
            ValueError: it is no results file, it is damaged, or another sweep has it open.
        """
        self.path = Path(path)
        self.lines: dict[str, dict[str, Any]] = {}
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._file)

    def add(self, key: str, line: Mapping[str, Any]) -> None:
        """Append the line of a cell."""
        self.lines[key] = {"key": key, **line}
        self._append(self.lines[key])

    def _append(self, line: Mapping[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"results: {self.path} is open in another sweep; wait for it or choose another file"
            ) from error

    def _read(self) -> None:
        if (size := os.fstat(self._file).st_size) > MAX_BYTES:
            raise ValueError(
                f"results: {self.path} has {size:,} bytes; at most {MAX_BYTES:,} are read; choose "
                f"another file"
            )
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            if data and not (json.dumps(HEADER) + "\n").encode().startswith(data):
                raise self._wrong_file()
            os.ftruncate(self._file, 0)
            self._append(HEADER)
            return
        if self._parse(1, lines[0]) != HEADER:
            raise self._wrong_file()
        for number, line in enumerate(lines[1:], start=2):
            parsed = self._parse(number, line)
            is_result = isinstance(parsed, dict) and isinstance(parsed.get("key"), str)
            if not is_result or parsed.get("status") not in {OK, FAILED}:
                raise ValueError(
                    f"results: {self.path}, line {number}: {line[:60]!r} is no result; delete that "
                    f"line, or choose another file"
                )
            self.lines[parsed["key"]] = parsed
        # Only now, when it is certain that the file is ours.
        os.ftruncate(self._file, len(whole))

    def _parse(self, number: int, line: bytes) -> Any:
        try:
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{len(line):,} bytes; a line has at most {MAX_LINE_BYTES:,}")
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == 1:
                raise self._wrong_file() from error
            raise ValueError(
                f"results: {self.path}, line {number}: {error}; delete that line, its cell is "
                f"then run again"
            ) from error

    def _wrong_file(self) -> ValueError:
        return ValueError(
            f"results: {self.path} does not begin with {json.dumps(HEADER)}, so it is no results "
            f"file of this version; choose another file"
        )
