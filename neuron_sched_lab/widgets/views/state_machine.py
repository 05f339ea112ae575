"""StateMachine: the seed's three states and its arrows; where we are, how we got there, and why."""

from __future__ import annotations

from math import atan2, cos, sin
from typing import Any, NamedTuple

import traitlets

from ..history import ACTIVE_DECODE, ACTIVE_PREFILL, IDLE, Moment, state_of
from ..palette import DIM, INK, LINE
from ..picture import Picture, title
from ..words import count, percent
from .view import View, read_static

ALL_DONE = "all decode complete and no prefill waiting"
ARROWS = (
    (IDLE, ACTIVE_PREFILL),
    (ACTIVE_PREFILL, ACTIVE_PREFILL),
    (ACTIVE_PREFILL, ACTIVE_DECODE),
    (ACTIVE_DECODE, ACTIVE_DECODE),
    (ACTIVE_DECODE, ACTIVE_PREFILL),
    (ACTIVE_DECODE, IDLE),
)
"""The seed's."""

PHASE_NODES = {"EMPTY": IDLE, "PREFILL": ACTIVE_PREFILL, "DECODE": ACTIVE_DECODE, "MIXED": "MIXED"}
"""Where a phase is drawn, for a scheduler without a state machine."""


class Arrow(NamedTuple):
    """The arrow taken last."""

    before: str
    after: str
    cause: str


def has_states(moment: Moment) -> bool:
    """Tell whether the scheduler has a state machine; before the first step, assume so."""
    trace = moment.history.trace
    return not len(trace) or trace[0].state is not None


def get_arrow(moment: Moment) -> Arrow:
    """Return the arrow that led to the state after the step."""
    record = moment.record
    idle = IDLE if has_states(moment) else "EMPTY"
    if record is None:
        return Arrow(idle, idle, "no request yet")
    after = state_of(record)
    if moment.is_idle:
        cause = "last request aborted" if moment.pending_aborts else ALL_DONE
        return Arrow(after, idle, cause)
    before = _state_before(moment, idle)
    return Arrow(before, after, record.cause or _phase_cause(record.phase))


def _state_before(moment: Moment, idle: str) -> str:
    earlier = Moment(moment.history, moment.position - 1)
    if earlier.record is None or earlier.is_idle:
        return idle
    return state_of(earlier.record)


def _phase_cause(phase: str) -> str:
    words = {
        "mixed": "prefills and decodes share the step",
        "empty": "nothing could be scheduled",
    }
    return words.get(phase, f"the step holds nothing but {phase}s")


def count_in_a_row(moment: Moment) -> int:
    """Return for how many steps the scheduler has been in its state, this one included."""
    if moment.record is None:
        return 0
    trace, state = moment.history.trace, state_of(moment.record)
    start = moment.position - 1
    while start > 0 and state_of(trace[start - 1]) == state:
        start -= 1
    return moment.position - start


class StateMachine(View):
    """IDLE, ACTIVE_PREFILL, ACTIVE_DECODE: the current state and the arrow just taken are lit.

    For a scheduler without a state machine the phase of each step is shown instead.
    """

    _esm = traitlets.Unicode(read_static("common.js", "state_machine.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "state_machine.css")).tag(sync=True)

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the arrow taken and the dwell times."""
        arrow = get_arrow(moment)
        return {
            "step": moment.step,
            "before": arrow.before,
            "after": arrow.after,
            "cause": arrow.cause,
            "has_states": has_states(moment),
            "in_a_row": 0 if moment.is_idle else count_in_a_row(moment),
            "dwell": dict(moment.history.totals(moment.position).dwell),
        }

    def make_alt(self, moment: Moment) -> str:
        """Return the arrow just taken in words."""
        arrow = get_arrow(moment)
        way = f"{arrow.before} to {arrow.after}" if arrow.before != arrow.after else arrow.after
        what = "State" if has_states(moment) else "Phase, as this scheduler has no states,"
        return f"{what} after step {moment.step}: {way}, because: {arrow.cause}."

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return how long each state was dwelt in."""
        rows = [["state", "steps", "share of steps"]]
        for state, steps in moment.history.totals(moment.position).dwell:
            rows.append([state, str(steps), percent(steps, moment.position)])
        return rows

    def make_picture(self, moment: Moment) -> Picture:
        """Return the diagram with the present state and arrow in bold."""
        return draw_states(moment)


_CENTRES = {IDLE: (84, 108), ACTIVE_PREFILL: (300, 64), ACTIVE_DECODE: (300, 152)}
_CENTRES["MIXED"] = (300, 108)


def draw_states(moment: Moment) -> Picture:
    """Draw the states, and the arrow just taken."""
    picture = Picture(420, 212)
    arrow = get_arrow(moment)
    title(picture, "State machine", f"after step {moment.step}")
    names = tuple(PHASE_NODES)
    if has_states(moment):
        names = (IDLE, ACTIVE_PREFILL, ACTIVE_DECODE)
    dwell = dict(moment.history.totals(moment.position).dwell)
    before, after = (PHASE_NODES.get(n, n) for n in (arrow.before, arrow.after))
    if has_states(moment):
        for start, end in ARROWS:
            _draw_arrow(picture, start, end, lit=False)
    _draw_arrow(picture, before, after, lit=True)
    for name in names:
        x, y = _CENTRES[PHASE_NODES.get(name, name)]
        lit = name == arrow.after
        picture.rect(
            x - 66, y - 19, 132, 38, "#ddf4ff" if lit else "#f6f8fa",
            stroke=INK if lit else LINE, r=8,
        )  # fmt: skip
        picture.text(x, y - 2, name, anchor="middle", bold=lit)
        picture.text(
            x, y + 12, count(dwell.get(name, 0), "step"), anchor="middle", size=11, fill=DIM
        )
    picture.text(12, 200, f"{arrow.before} → {arrow.after}: {arrow.cause}", max_length=72)
    return picture


def _draw_arrow(picture: Picture, start: str, end: str, *, lit: bool) -> None:
    (x0, y0), (x1, y1) = _CENTRES[start], _CENTRES[end]
    colour, width = (INK, 2.5) if lit else (LINE, 1.2)
    if start == end:
        picture.path(
            f"M{x0 + 66} {y0 - 8}c26 -8 26 24 0 16m6 -5l-6 5l6 4", colour, width=width
        )  # fmt: skip
        return
    # The two directions between the same states are drawn side by side.
    shift = 12 if y1 > y0 else -12
    if x0 == x1:
        x0, x1 = x0 + shift, x1 + shift
        y0, y1 = (y0 + 19, y1 - 19) if y1 > y0 else (y0 - 19, y1 + 19)
    else:
        right = x1 > x0
        x0, x1 = (x0 + 66, x1 - 66) if right else (x0 - 66, x1 + 66)
    angle = atan2(y1 - y0, x1 - x0)
    tips = "".join(
        f"M{x1} {y1}L{x1 - 8 * cos(angle + turn):.1f} {y1 - 8 * sin(angle + turn):.1f}"
        for turn in (-0.45, 0.45)
    )
    picture.path(f"M{x0} {y0}L{x1} {y1}{tips}", colour, width=width)
