"""TextView: the text of each request as it grows."""

from __future__ import annotations

from typing import Any

import traitlets

from ..history import Moment
from ..palette import ACTIVITIES
from ..picture import Picture
from ..words import count, visible
from .queue_board import group_requests
from .view import View, read_static

MAX_LINES = 12
"""Requests whose text is shown: those that gained some last."""
MAX_TEXT = 120
"""Characters of a text that are shown: its end."""


def get_lines(moment: Moment, limit: int = MAX_LINES) -> list[tuple[int, str, str]]:
    """Return (key, activity, end of the text) of those who have text, in order of arrival."""
    history, position = moment.history, moment.position
    last = {
        key: at
        for key in range(history.num_requests)
        if (at := history.last_text_position(key, position))
    }
    keys = sorted(sorted(last, key=lambda k: (-last[k], -k))[:limit])
    where = {key: name for name, group in group_requests(moment).items() for key in group.keys}
    return [
        (key, where.get(key, "finished"), visible(history.text(key, position, MAX_TEXT)))
        for key in keys
    ]


class TextView(View):
    """What the model has answered so far, request by request."""

    _esm = traitlets.Unicode(read_static("common.js", "text_view.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "text_view.css")).tag(sync=True)

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the lines of text."""
        history = moment.history
        lines = get_lines(moment)
        return {
            "step": moment.step,
            "lines": [
                [key, history.label(key), ACTIVITIES[name].letter, name, text]
                for key, name, text in lines
            ],
        }

    def make_alt(self, moment: Moment) -> str:
        """Return who has text."""
        lines = get_lines(moment)
        if not lines:
            return "No text yet."
        return f"The text of {count(len(lines), 'request')} after step {moment.step}."

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return one row a request."""
        rows = [["request", "where", "text"]]
        for key, name, text in get_lines(moment, limit=100):
            rows.append([moment.history.label(key), ACTIVITIES[name].title, text])
        return rows

    def make_picture(self, moment: Moment) -> Picture | None:
        """Return None: text needs no picture."""
        return None
