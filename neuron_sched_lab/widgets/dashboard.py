"""Dashboard: the controls and all views of one Lab or Trace on one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from .controls import Controls
from .palette import ACTIVITIES
from .picture import html_table
from .player import Player
from .views.inputs_view import InputsView
from .views.kv_map import KVMap
from .views.padding_view import PaddingView
from .views.queue_board import QueueBoard, group_requests
from .views.state_machine import StateMachine, get_arrow
from .views.text_view import TextView
from .views.timeline import Timeline
from .views.view import View
from .words import count, percent

VIEWS: dict[str, type[View]] = {
    "board": QueueBoard,
    "states": StateMachine,
    "padding": PaddingView,
    "kv": KVMap,
    "text": TextView,
    "timeline": Timeline,
    "inputs": InputsView,
}
STATIC_VIEWS = ("board", "states", "padding", "kv", "timeline", "inputs")
"""Views that a page without a kernel shows as pictures, if the dashboard has them."""
HALF_WIDTH = ("states", "padding", "kv", "text")
"""Views that stand side by side where the page is wide enough."""


class Dashboard(ipywidgets.VBox):
    """Watch a live Lab, or a recorded Trace.

        Dashboard(lab)                        # everything; no Reset if it has requests
        Dashboard(trace, views=["board"])     # one view
        Dashboard(make_lab)                   # a function that makes a Lab: Reset calls it again

    Args:
        source: a Lab, a Trace, or a function that makes a Lab and adds its first requests.
        views: names out of VIEWS, in order of appearance.
        refill: called with the Lab after a reset, to add its first requests again.

    Raises:
        ValueError: a view or the source is unknown.

    Attributes:
        player: moves all views: `step()`, `play()`, `pause()`, `seek()`, `add()` and so on.
        views: the views by name.
    """

    def __init__(
        self,
        source: Any,
        views: Sequence[str] = tuple(VIEWS),
        *,
        refill: Callable[[Any], None] | None = None,
    ) -> None:
        if unknown := [name for name in views if name not in VIEWS]:
            raise ValueError(f"views: {unknown[0]!r} is unknown; known: {', '.join(VIEWS)}")
        self.player = Player.of(source)
        self.player.refill = refill or self.player.refill
        self.controls = Controls(self.player)
        self.views = {name: VIEWS[name](self.player) for name in views}
        for name, view in self.views.items():
            view.add_class("nsl-half" if name in HALF_WIDTH else "nsl-full")
        grid = ipywidgets.Box(list(self.views.values()))
        grid.add_class("nsl-grid")
        super().__init__([self.controls, grid])
        self.add_class("nsl-dashboard")

    def close(self) -> None:
        """Stop following the source, and remove the dashboard from the page."""
        if hasattr(self, "views"):  # else it was refused while it was made
            for widget in (self.controls, *self.views.values()):
                widget.close()
        super().close()

    def summary(self) -> str:
        """Return the moment shown in a few lines of text; the same in every run."""
        return "\n".join(f"{name:<10} {value}" for name, value in self._figures())

    def snapshot(self) -> Snapshot:
        """Return a picture of the moment shown: what a notebook keeps where nothing is live."""
        return Snapshot(self.summary(), self.static_html())

    def static_html(self) -> str:
        """Return the dashboard as pictures and tables that need neither kernel nor JavaScript."""
        parts = [html_table([("figure", "value"), *self._figures()])]
        parts += [self.views[name].static_html() for name in STATIC_VIEWS if name in self.views]
        return "".join(f"<div>{part}</div>" for part in parts)

    def _figures(self) -> list[tuple[str, str]]:
        moment = self.player.moment()
        totals = moment.history.totals(moment.position)
        groups = group_requests(moment)
        queues = [f"{g.total} {ACTIVITIES[name].title.lower()}" for name, g in groups.items()]
        arrow = get_arrow(moment)
        record, config = moment.record, moment.config
        padding = percent(totals.num_padding_tokens, totals.num_padded_tokens)
        fill = percent(totals.rows, totals.padded_rows)
        used = record.kv_blocks_used if record else 0
        return [
            ("scheduler", config.scheduler),
            ("step", f"{moment.step} of {len(moment.history)}"),
            ("state", f"{arrow.after} ({arrow.cause})"),
            ("requests", ", ".join(queues)),
            ("padding", f"{padding} of {count(totals.num_padded_tokens, 'token')}"),
            ("decodes", f"{fill} of {count(totals.padded_rows, 'row')} used"),
            ("KV cache", f"{used:,} of {count(config.kv_blocks_total, 'block')} used"),
        ]

    def __repr__(self) -> str:
        """Return the summary."""
        return self.summary()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        data = dict(super()._repr_mimebundle_(**kwargs))
        return {**data, "text/html": self.static_html(), "text/plain": self.summary()}


class Snapshot:
    """A dashboard at one moment: text for a terminal, pictures and tables for a page."""

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        """Return the text."""
        return self._text

    def _repr_html_(self) -> str:
        return self._html
