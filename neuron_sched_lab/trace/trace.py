"""Trace: the records of a run, whoever ran it; saved, loaded and summed up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from . import perfetto, trace_file
from .records import RequestInfo, StepRecord, TraceConfig
from .summary import TraceSummary, summarise


@dataclass
class Trace:
    """The records of a run, in order.

    Attributes:
        config: the settings of the engine.
        requests: what was added, by id, in order of arrival.
        records: one StepRecord a step.
    """

    config: TraceConfig
    requests: dict[str, RequestInfo] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        return self.records[index]

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Return the tokens generated so far, by request id."""
        tokens: dict[str, tuple[int, ...]] = dict.fromkeys(self.requests, ())
        for record in self.records:
            for scheduled in record.scheduled:
                if scheduled.new_token_ids:
                    earlier = tokens.get(scheduled.request_id, ())
                    tokens[scheduled.request_id] = earlier + scheduled.new_token_ids
        return tokens

    def summary(self) -> TraceSummary:
        """Return the run's figures; see TraceSummary."""
        return summarise(self.config.scheduler, self.requests, self.records)

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON lines; see `trace_file`."""
        trace_file.write(path, self.config, self.requests.values(), self.records)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` wrote.

        Raises:
            ValueError: the file is corrupt or newer than this version; names line and reason.
        """
        config, requests, records = trace_file.read(path)
        return cls(config, requests, records)

    def to_perfetto(self, path: str | Path) -> None:
        """Write trace-event JSON that Perfetto and chrome://tracing open; see `perfetto`."""
        perfetto.write(path, self.config.scheduler, self.requests, self.records)
