"""Timeline: a lane for each request over the steps: its prefills, its decodes, and its waiting.

The browser keeps the steps that it has been sent and asks for those it lacks, so that a step
costs one small message however long the run is.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import traitlets

from ...trace.records import DECODE, PREFILL, StepRecord
from ..history import History, Moment
from ..palette import ACTIVITIES, DIM, INK, LINE
from ..picture import Picture, title
from ..words import count, listed
from .view import MAX_TABLE_ROWS, View, read_static

MAX_ROWS_A_MESSAGE = 1000
MAX_STEPS_KEPT = 5000
"""Steps that the browser keeps; of a longer run it shows the last ones."""


def describe_shape(shape: tuple) -> str:
    """Return a tensor shape in words."""
    phase, size, *rows = shape
    words = f"{phase} of {count(size, 'row' if phase == DECODE else 'token')}"
    return f"{words} in {count(rows[0], 'row')}" if rows else words


def make_row(history: History, position: int) -> list[Any]:
    """Return what the browser needs to know of one step.

    [step, microseconds, prefills as [key, actual, padded], decodes, hidden, stalled, finished,
    aborted, preempted (lists of keys), new shape in words or ""]
    """
    record: StepRecord = history.trace[position - 1]
    key = history.key
    ran = {s.request_id for s in record.scheduled}
    hidden = set(record.hidden)
    shape = history.new_shape(position)
    return [
        record.step,
        round((record.schedule_seconds + record.model_seconds) * 1e6),
        [
            [key(s.request_id), s.num_tokens, s.num_padded_tokens]
            for s in record.scheduled
            if s.phase == PREFILL
        ],
        [key(s.request_id) for s in record.scheduled if s.phase != PREFILL],
        [key(i) for i in record.hidden],
        [key(i) for i in record.running if i not in ran and i not in hidden],
        [key(i) for i, _ in record.finished],
        [key(i) for i in record.aborted],
        [key(i) for i in record.preempted],
        describe_shape(shape) if shape else "",
    ]


class Timeline(View):
    """Each request's prefill segments, decodes and stalls, over steps or over time."""

    _esm = traitlets.Unicode(read_static("common.js", "timeline.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "timeline.css")).tag(sync=True)

    def __init__(self, source: Any) -> None:
        self._num_sent: int | None = None  # nobody has asked yet
        self._num_lanes_sent = 0
        self._run = 0
        self._history: History | None = None
        super().__init__(source)

    def draw(self) -> None:
        """Send the playhead, and the steps that are new."""
        if self._history is not self.player.history:
            self._history = self.player.history
            self._run += 1
            self._num_sent = None if self._num_sent is None else 0
            self._num_lanes_sent = 0
        super().draw()
        if self._num_sent is not None and self._num_viewers:
            self._num_sent = self._send_rows(self._num_sent)

    def _receive(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        """Answer a page that asks for steps, on any thread: a cell may keep the main one busy."""
        super()._receive(widget, content, buffers)
        if content.get("type") == "ask":
            have = content.get("have")
            if type(have) is not int or not 0 <= have <= len(self.player.history):
                have = 0
            self._num_lanes_sent = 0
            self._num_sent = self._send_rows(have if content.get("run") == self._run else 0)

    def _send_rows(self, start: int) -> int:
        """Send the steps from `start` on; return how many the browser has then."""
        history = self.player.history
        end = len(history)
        start = max(min(start, end), end - MAX_STEPS_KEPT)
        num_lanes = history.num_requests
        while start < end or self._num_lanes_sent < num_lanes:
            stop = min(start + MAX_ROWS_A_MESSAGE, end)
            self.send(
                {
                    "type": "rows",
                    "run": self._run,
                    "start": start,
                    "rows": [make_row(history, position + 1) for position in range(start, stop)],
                    "first_lane": self._num_lanes_sent,
                    "lanes": [_lane(history, k) for k in range(self._num_lanes_sent, num_lanes)],
                }
            )
            start, self._num_lanes_sent = stop, num_lanes
        return end

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the playhead; the steps travel by themselves."""
        return {
            "run": self._run,
            "position": moment.position,
            "step": moment.step,
            "total": len(moment.history),
        }

    def make_alt(self, moment: Moment) -> str:
        """Return what the last step did and to whom."""
        history, record = moment.history, moment.record
        requests = count(history.num_requests, "request")
        if record is None:
            return f"Timeline of {requests}, before the first step."
        ran = [history.label(history.key(s.request_id)) for s in record.scheduled]
        hidden = [history.label(history.key(i)) for i in record.hidden]
        stall = f", while the decodes of {listed(hidden)} stall" if hidden else ""
        return (
            f"Timeline of {requests} over {count(moment.position, 'step')}. Step {record.step}: "
            f"{record.phase} of {listed(ran)}{stall}."
        )

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return one row a step, the newest first."""
        history = moment.history
        rows = [["step", "phase", "ran", "hidden", "ended", "new shape"]]
        start = max(moment.position - MAX_TABLE_ROWS, 0)
        for position in range(moment.position, start, -1):
            record = history.trace[position - 1]
            shape = history.new_shape(position)
            ran = [history.label(history.key(s.request_id)) for s in record.scheduled]
            hidden = [history.label(history.key(i)) for i in record.hidden]
            ended = [history.label(history.key(i)) for i, _ in record.finished]
            rows.append(
                [
                    str(record.step),
                    record.phase,
                    listed(ran),
                    listed(hidden) if hidden else "",
                    listed(ended) if ended else "",
                    describe_shape(shape) if shape else "",
                ]
            )
        return rows

    def make_picture(self, moment: Moment) -> Picture:
        """Return the last steps, a lane a request."""
        return draw_lanes(moment)


def _lane(history: History, key: int) -> list[Any]:
    info = history.info(key)
    return [history.label(key), info.arrived_before_step if info else 0]


def draw_lanes(moment: Moment, max_steps: int = 96, max_lanes: int = 16) -> Picture:
    """Draw the last steps of the requests that did something in them."""
    history = moment.history
    start = max(moment.position - max_steps, 0)
    rows = [make_row(history, p) for p in range(start + 1, moment.position + 1)]
    lanes = _cells_by_lane(rows)
    keys = sorted(lanes)[:max_lanes]
    picture = Picture(840, 62 + 16 * max(len(keys), 1))
    more = f", {len(lanes) - len(keys)} more requests" if len(lanes) > len(keys) else ""
    last = f"steps {rows[0][0]} to {rows[-1][0]}" if rows else "no step yet"
    title(picture, "Timeline", last + more)
    slot = min(712 / max(len(rows), 1), 24)
    for index, key in enumerate(keys):
        y = 34 + index * 16
        picture.text(104, y + 10, history.label(key), size=11, anchor="end", max_length=16)
        for activity, cells in groupby(sorted(lanes[key].items()), key=lambda cell: cell[1]):
            for first, last_cell in _runs([cell for cell, _ in cells]):
                _draw_cell(picture, 112 + first * slot, y, (last_cell - first + 1) * slot, activity)
    _draw_legend(picture, 112, picture.height - 16)
    return picture


def _cells_by_lane(rows: list[list[Any]]) -> dict[int, dict[int, str]]:
    lanes: dict[int, dict[int, str]] = {}
    for index, (_, _, prefills, decodes, hidden, stalled, *_) in enumerate(rows):
        by_activity = {
            "prefill": [k for k, *_ in prefills],
            "decode": decodes,
            "hidden": hidden,
            "stalled": stalled,
        }
        for activity, keys in by_activity.items():
            for key in keys:
                lanes.setdefault(key, {})[index] = activity
    return lanes


def _runs(cells: list[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers in an ascending list, as (first, last)."""
    runs = []
    for _, run in groupby(enumerate(cells), key=lambda pair: pair[1] - pair[0]):
        members = [cell for _, cell in run]
        runs.append((members[0], members[-1]))
    return runs


def _draw_cell(picture: Picture, x: float, y: float, width: float, activity: str) -> None:
    x, width = round(x, 1), round(width - 0.5, 1)
    colour = ACTIVITIES[activity].colour
    if activity == "prefill":
        picture.rect(x, y, width, 13, colour, stroke=INK)
    elif activity == "decode":
        picture.rect(x, y + 3, width, 7, colour)
    elif activity == "hidden":
        picture.rect(x, y + 5, width, 3, colour)
    else:
        picture.rect(x, y + 6, width, 1, DIM)


def _draw_legend(picture: Picture, x: float, y: float) -> None:
    picture.rect(x, y - 6, 716, 1, LINE)
    words = {"prefill": "prefill", "decode": "decode", "hidden": "decode hidden (stall)"}
    for index, (activity, text) in enumerate(words.items()):
        _draw_cell(picture, x + index * 110, y - 1, 18, activity)
        picture.text(x + 24 + index * 110, y + 9, text, size=11, fill=DIM)
