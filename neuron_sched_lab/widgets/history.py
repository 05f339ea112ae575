"""History: the state of every request after each step of a trace, without replaying it.

It grows with its trace, and each step is looked at once; afterwards any position of the playhead
costs the same, so that scrubbing through a long run is as quick as watching it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ..trace.records import DECODE, EMPTY, MIXED, PREFILL
from .words import label

if TYPE_CHECKING:
    from ..trace.records import RequestInfo, StepRecord, TraceConfig
    from ..trace.trace import Trace

IDLE, ACTIVE_PREFILL, ACTIVE_DECODE = "IDLE", "ACTIVE_PREFILL", "ACTIVE_DECODE"
STATE_OF_PHASE = {PREFILL: "PREFILL", DECODE: "DECODE", MIXED: "MIXED", EMPTY: "EMPTY"}
"""What stands for the state where a scheduler has no state machine."""


class Totals(NamedTuple):
    """Sums over all steps up to a position.

    Attributes:
        num_tokens: actual tokens computed.
        num_padded_tokens: tokens of all tensors.
        rows: requests in decode batches.
        padded_rows: rows of decode batches.
        dwell: (state, steps spent in it), in order of first visit.
        seconds: measured or simulated time.
    """

    num_tokens: int = 0
    num_padded_tokens: int = 0
    rows: int = 0
    padded_rows: int = 0
    dwell: tuple[tuple[str, int], ...] = ()
    seconds: float = 0.0

    @property
    def num_padding_tokens(self) -> int:
        """Tokens that were computed for nothing."""
        return self.num_padded_tokens - self.num_tokens


@dataclass
class _Life:
    """One request: the positions at which something changed, and what it was then."""

    label: str
    info: RequestInfo | None = None
    positions: array = field(default_factory=lambda: array("L"))
    computed: array = field(default_factory=lambda: array("L"))
    generated: array = field(default_factory=lambda: array("L"))
    text_positions: array = field(default_factory=lambda: array("L"))
    texts: list[str] = field(default_factory=list)


class History:
    """An index over `trace`. Requests are known by a number, their key, in order of arrival.

    A position is a number of steps: 0 is before the first, `len(trace)` after the last.

    Attributes:
        trace: what is indexed; `extend()` takes in what was added to it.
        finished: (position, key, reason) of each request that ended by itself, in order.
        aborted: (position, key) of each that was aborted.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.finished: list[tuple[int, int, str]] = []
        self.aborted: list[tuple[int, int]] = []
        self._keys: dict[str, int] = {}
        self._ids: list[str] = []
        self._lives: list[_Life] = []
        self._totals = [Totals()]
        self._new_shapes: dict[int, tuple] = {}
        self._shapes: set[tuple] = set()
        self._num_infos = 0
        self.extend()

    def __len__(self) -> int:
        """Return the number of steps indexed."""
        return len(self._totals) - 1

    @property
    def num_requests(self) -> int:
        """Requests seen so far; keys count from 0."""
        return len(self._ids)

    @property
    def config(self) -> TraceConfig:
        """The settings of the engine."""
        return self.trace.config

    def extend(self) -> None:
        """Take in the requests and steps that the trace has gained."""
        if len(self.trace.requests) != self._num_infos:
            for request_id, info in self.trace.requests.items():
                self._lives[self.key(request_id)].info = info
            self._num_infos = len(self.trace.requests)
        for index in range(len(self), len(self.trace)):
            self._take_in(self.trace[index], index + 1)

    def _take_in(self, record: StepRecord, position: int) -> None:
        for s in record.scheduled:
            life = self._lives[self.key(s.request_id)]
            generated = life.generated[-1] if life.generated else 0
            life.positions.append(position)
            life.computed.append(s.num_computed_tokens + s.num_tokens)
            life.generated.append(generated + len(s.new_token_ids))
        for request_id in record.preempted:
            life = self._lives[self.key(request_id)]
            life.positions.append(position)
            life.computed.append(0)
            life.generated.append(life.generated[-1] if life.generated else 0)
        for request_id, text in record.new_text:
            life = self._lives[self.key(request_id)]
            life.text_positions.append(position)
            life.texts.append(text)
        for queue in (record.running, record.waiting, record.held_back):
            for request_id in queue:
                self.key(request_id)
        self.finished += [(position, self.key(i), reason) for i, reason in record.finished]
        self.aborted += [(position, self.key(i)) for i in record.aborted]
        if record.shape is not None and record.shape not in self._shapes:
            self._shapes.add(record.shape)
            self._new_shapes[position] = record.shape
        self._totals.append(_add(self._totals[-1], record))

    def key(self, request_id: str) -> int:
        """Return the key of a request, giving it one if it is new."""
        key = self._keys.get(request_id)
        if key is None:
            key = self._keys[request_id] = len(self._ids)
            self._ids.append(request_id)
            self._lives.append(_Life(label(request_id)))
        return key

    def request_id(self, key: int) -> str:
        """Return the id behind a key."""
        return self._ids[key]

    def label(self, key: int) -> str:
        """Return the id behind a key, fit for the screen."""
        return self._lives[key].label

    def info(self, key: int) -> RequestInfo | None:
        """Return what is known of a request, or None if only a scheduler was recorded."""
        return self._lives[key].info

    def progress(self, key: int, position: int) -> tuple[int, int]:
        """Return (tokens in the KV cache, tokens generated) of a request after `position` steps."""
        life = self._lives[key]
        at = bisect_right(life.positions, position) - 1
        return (life.computed[at], life.generated[at]) if at >= 0 else (0, 0)

    def ended_by(self, position: int) -> tuple[list[int], list[int]]:
        """Return the keys of those finished and of those aborted in the first `position` steps."""
        finished = self.finished[: bisect_right(self.finished, position, key=itemgetter(0))]
        aborted = self.aborted[: bisect_right(self.aborted, position, key=itemgetter(0))]
        return [key for _, key, _ in finished], [key for _, key in aborted]

    def last_text_position(self, key: int, position: int) -> int:
        """Return the last position up to `position` at which a request gained text, or 0."""
        positions = self._lives[key].text_positions
        at = bisect_right(positions, position)
        return positions[at - 1] if at else 0

    def text(self, key: int, position: int, max_length: int) -> str:
        """Return the end of the text that a request had after `position` steps."""
        life = self._lives[key]
        at = bisect_right(life.text_positions, position)
        # A piece holds at least one character.
        text = "".join(life.texts[max(0, at - max_length - 1) : at])
        return text if len(text) <= max_length else "…" + text[-max_length:]

    def totals(self, position: int) -> Totals:
        """Return the sums over the first `position` steps."""
        return self._totals[position]

    def new_shape(self, position: int) -> tuple | None:
        """Return the tensor shape that the step brought up for the first time, or None."""
        return self._new_shapes.get(position)


def _add(totals: Totals, record: StepRecord) -> Totals:
    rows = padded_rows = 0
    if record.phase == DECODE:
        rows = len(record.scheduled)
        padded_rows = record.decode_batch_bucket or rows
    dwell = dict(totals.dwell)
    state = state_of(record)
    dwell[state] = dwell.get(state, 0) + 1
    return Totals(
        totals.num_tokens + record.num_tokens,
        totals.num_padded_tokens + record.num_padded_tokens,
        totals.rows + rows,
        totals.padded_rows + padded_rows,
        tuple(dwell.items()),
        totals.seconds + record.schedule_seconds + record.model_seconds,
    )


def state_of(record: StepRecord) -> str:
    """Return the scheduler's state, or the step's phase where it has none."""
    return record.state or STATE_OF_PHASE[record.phase]


@dataclass(frozen=True)
class Moment:
    """All that a view may know: a position in a history, and what happened since its last step.

    Attributes:
        history: the index of the trace.
        position: steps shown.
        arrivals: keys of requests that no step has seen yet; only at the end of the trace.
        pending_aborts: keys of requests aborted since the last step; only at the end.
    """

    history: History
    position: int
    arrivals: tuple[int, ...] = ()
    pending_aborts: tuple[int, ...] = ()

    @classmethod
    def of(cls, history: History, position: int, aborted: tuple[str, ...] = ()) -> Moment:
        """Return the moment after `position` steps.

        Args:
            history: the index of the trace.
            position: steps shown.
            aborted: ids of requests aborted since the trace's last step.
        """
        if position < len(history):
            return cls(history, position)
        last_step = history.trace[position - 1].step if position else 0
        gone = tuple(history.key(i) for i in aborted)
        arrivals = []
        for info in reversed(history.trace.requests.values()):
            if info.arrived_before_step <= last_step:
                break  # so did all before it: they stand in order of arrival
            arrivals.append(history.key(info.request_id))
        return cls(history, position, tuple(k for k in reversed(arrivals) if k not in gone), gone)

    @property
    def config(self) -> TraceConfig:
        """The settings of the engine."""
        return self.history.config

    @property
    def record(self) -> StepRecord | None:
        """The step just made, or None before the first."""
        return self.history.trace[self.position - 1] if self.position else None

    @property
    def step(self) -> int:
        """Number of the step just made, or 0."""
        return self.record.step if self.record else 0

    @property
    def ended(self) -> set[int]:
        """Keys of the requests that ended in this step or since."""
        record, key = self.record, self.history.key
        finished = {key(i) for i, _ in record.finished} if record else set()
        return finished | set(self.pending_aborts)

    @property
    def is_idle(self) -> bool:
        """True if no request is left."""
        if self.arrivals:
            return False
        if (record := self.record) is None:
            return True
        ended, key = self.ended, self.history.key
        left = [i for i in (*record.running, *record.waiting) if key(i) not in ended]
        held = record.num_held_back - sum(key(i) in ended for i in record.held_back)
        return not left and held <= 0
