"""QueueBoard: a column for each queue, a chip for each request, and why the first one waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import traitlets

from ...trace.records import PREFILL, StepRecord, TraceConfig
from ..history import Moment
from ..palette import ACTIVITIES, DIM, INK, LINE
from ..picture import Picture, title
from ..words import count, label, listed
from .view import View, read_static

MAX_CHIPS = 24
"""Chips of one group that are drawn; the rest is a number."""

COLUMNS = (
    ("Waiting", ("waiting",)),
    ("Held back", ("held_back",)),
    ("Running", ("prefill", "decode", "stalled")),
    ("Hidden decodes", ("hidden",)),
    ("Finished", ("finished",)),
    ("Aborted", ("aborted",)),
)

WHY: dict[str, Callable[[TraceConfig, StepRecord], str]] = {
    "at capacity": lambda config, _: f"all {config.max_num_seqs} seats are taken",
    "prefill in progress": lambda *_: "another prompt is not yet done",
    "prefill batch full": lambda *_: "one new prompt a step, and this step has one",
    "adapter slots taken": lambda *_: "running requests use every adapter slot",
    "KV cache saturated": lambda config, _: (
        f"the cache is sure to last for {count(config.max_kv_concurrent or 0, 'request')} only"
    ),
    "decodes go first": lambda *_: "it is the decodes' turn",
    "scheduler paused": lambda *_: "nobody is let in for now",
    "not ready": lambda *_: "the request itself waits for something",
}
"""By hold reason: its explanation in words."""


class Group(NamedTuple):
    """The requests that do one thing: those that are known by name, and how many there are."""

    keys: list[int]
    total: int


def group_requests(moment: Moment) -> dict[str, Group]:
    """Return who does what at `moment`, by name of the activity."""
    record, key = moment.record, moment.history.key
    ended = moment.ended
    groups: dict[str, list[int]] = {name: [] for name in ACTIVITIES}
    more = {"waiting": 0, "held_back": 0}
    if record:
        shares = {s.request_id: s for s in record.scheduled}
        hidden = set(record.hidden)
        for request_id in record.running:
            share = shares.get(request_id)
            if share:
                name = PREFILL if share.phase == PREFILL else "decode"
            else:
                name = "hidden" if request_id in hidden else "stalled"
            groups[name].append(key(request_id))
        groups["waiting"] += map(key, record.waiting)
        groups["held_back"] += map(key, record.held_back)
        more["waiting"] = record.num_waiting - len(record.waiting)
        more["held_back"] = record.num_held_back - len(record.held_back)
    groups = {name: [k for k in keys if k not in ended] for name, keys in groups.items()}
    groups["waiting"] += moment.arrivals
    finished, aborted = moment.history.ended_by(moment.position)
    # The newest first: the old ones are of no interest any more.
    groups["finished"] = finished[::-1]
    groups["aborted"] = [*moment.pending_aborts[::-1], *aborted[::-1]]
    return {name: Group(keys, len(keys) + more.get(name, 0)) for name, keys in groups.items()}


def explain_hold(moment: Moment) -> tuple[str, str, str] | None:
    """Return (label of the first request not admitted, the reason, what is behind it)."""
    record = moment.record
    if record is None or record.hold_reason is None or record.held_head is None:
        return None
    if moment.history.key(record.held_head) in moment.ended:
        return None
    why = WHY.get(record.hold_reason)
    more = why(moment.config, record) if why else ""
    return label(record.held_head), record.hold_reason, more


class QueueBoard(View):
    """Who waits, who runs, who is hidden, who is done; and why the head of the queue waits."""

    _esm = traitlets.Unicode(read_static("common.js", "queue_board.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "queue_board.css")).tag(sync=True)

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the groups, each chip a list of numbers and a label."""
        groups = group_requests(moment)
        hold = explain_hold(moment)
        preempted = [label(i) for i in moment.record.preempted] if moment.record else []
        return {
            "step": moment.step,
            "groups": {
                name: [
                    group.total,
                    [_chip(moment, key) for key in group.keys[:MAX_CHIPS]],
                ]
                for name, group in groups.items()
            },
            "hold": list(hold) if hold else None,
            "preempted": listed(preempted) if preempted else "",
        }

    def make_alt(self, moment: Moment) -> str:
        """Return the length of each queue in words."""
        totals = [
            f"{group.total} {ACTIVITIES[name].title.lower()}"
            for name, group in group_requests(moment).items()
            if group.total or name not in {"stalled", "aborted"}
        ]
        hold = explain_hold(moment)
        why = f" {hold[0]} is not admitted: {hold[1]}." if hold else ""
        return f"Step {moment.step}: {', '.join(totals)}.{why}"

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return one row a request."""
        rows = [["request", "where", "prompt tokens computed", "tokens generated"]]
        for name, group in group_requests(moment).items():
            for key in group.keys:
                _, text, computed, prompt, generated, limit = _chip(moment, key)
                of = f" of {prompt}" if prompt else ""
                limit_text = f" of {limit}" if limit else ""
                where = ACTIVITIES[name].title
                rows.append([text, where, f"{computed}{of}", f"{generated}{limit_text}"])
            if group.total > len(group.keys):
                more = f"{group.total - len(group.keys)} more"
                rows.append([more, ACTIVITIES[name].title, "", ""])
        return rows

    def make_picture(self, moment: Moment) -> Picture:
        """Return the board with the first few chips of each column."""
        return draw_board(moment)


def _chip(moment: Moment, key: int) -> list[Any]:
    """Return [key, label, prompt tokens computed, of, tokens generated, of]."""
    history = moment.history
    computed, generated = history.progress(key, moment.position)
    info = history.info(key)
    prompt, limit = (info.num_prompt_tokens, info.max_tokens) if info else (0, 0)
    return [key, history.label(key), min(computed, prompt or computed), prompt, generated, limit]


def draw_board(moment: Moment, max_rows: int = 5) -> Picture:
    """Draw the columns of the board, `max_rows` chips in each."""
    groups = group_requests(moment)
    width, column = 840, 136
    picture = Picture(width, 92 + max_rows * 34)
    title(picture, f"Queues after step {moment.step}", moment.config.scheduler)
    for index, (name, members) in enumerate(COLUMNS):
        x = 12 + index * column
        total = sum(groups[member].total for member in members)
        picture.text(x, 48, name, bold=True)
        picture.text(x + column - 16, 48, str(total), anchor="end", fill=DIM)
        picture.rect(x, 55, column - 12, 1, LINE)
        chips = [(member, key) for member in members for key in groups[member].keys]
        for row, (member, key) in enumerate(chips[:max_rows]):
            _draw_chip(picture, x, 62 + row * 34, column - 12, member, _chip(moment, key))
        shown = min(len(chips), max_rows)
        if total > shown:
            picture.text(x, 76 + shown * 34, f"{total - shown} more", fill=DIM)
    if hold := explain_hold(moment):
        picture.text(
            12, picture.height - 10, f"{hold[0]} waits: {hold[1]} ({hold[2]})", max_length=120
        )
    return picture


def _draw_chip(
    picture: Picture, x: float, y: float, width: float, name: str, chip: list[Any]
) -> None:
    _, text, computed, prompt, generated, limit = chip
    activity = ACTIVITIES[name]
    picture.rect(x, y, width, 29, "#f6f8fa", stroke=LINE, r=4)
    picture.badge(x + 4, y + 4, activity.letter, activity.colour)
    picture.text(x + 24, y + 15, text, fill=INK, max_length=13)
    done, whole = computed + generated, (prompt + limit) or 1
    picture.rect(x + 4, y + 23, width - 8, 3, LINE)
    picture.rect(x + 4, y + 23, (width - 8) * min(done / whole, 1), 3, activity.colour)
