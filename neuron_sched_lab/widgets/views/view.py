"""View: what all views have in common.

A view's Python side turns a Moment into a small dict, its `frame`; its JavaScript side draws it.
The table of the same figures is made only while somebody has it open.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ..history import Moment
from ..picture import Picture, html_table
from ..player import Player

STATIC = Path(__file__).parents[1] / "static"
MAX_TABLE_ROWS = 200


def read_static(*names: str) -> str:
    """Return the package's static files of these names, one after the other."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


class View(anywidget.AnyWidget):
    """One view of a Lab or a Trace.

    Args:
        source: a Lab, a Trace, or the Player of either; views of one source move together.

    Attributes:
        player: the playhead that the view follows.
        frame: what the browser draws; all text in it is plain text.
        alt: the figure in words, for those who do not see it.
        table: the figure's data, the names of the columns first; empty unless `table_open`.
    """

    frame = traitlets.Dict().tag(sync=True)
    alt = traitlets.Unicode().tag(sync=True)
    table: Any = traitlets.List().tag(sync=True)
    table_open = traitlets.Bool(False).tag(sync=True)

    def __init__(self, source: Any) -> None:
        self.player = Player.of(source)
        self._num_viewers: int | None = None
        super().__init__()
        self.draw()
        self.player.observers.append(self.draw)
        self.on_msg(self._receive)
        self.observe(lambda _: self.draw(), "table_open")

    def close(self) -> None:
        """Stop following the source, and remove the widget from the page."""
        player = getattr(self, "player", None)  # none if the source was refused
        if player is not None and self.draw in player.observers:
            player.observers.remove(self.draw)
        super().close()

    def draw(self) -> None:
        """Send the present moment to the browser, if anybody looks."""
        if self._num_viewers == 0:
            return
        moment = self.player.moment()
        with self.hold_sync():  # one message for all
            self.frame = self.make_frame(moment)
            self.alt = self.make_alt(moment)
            self.table = self.make_table(moment)[: MAX_TABLE_ROWS + 1] if self.table_open else []

    def _receive(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        """Count the pages that show the view; one that none shows costs nothing."""
        if content.get("type") == "hello":
            self._num_viewers = (self._num_viewers or 0) + 1
            self.player.post(self.draw)
        elif content.get("type") == "bye":
            self._num_viewers = max((self._num_viewers or 0) - 1, 0)

    # What each view says for itself

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return what the browser needs to draw `moment`."""
        raise NotImplementedError

    def make_alt(self, moment: Moment) -> str:
        """Return the figure in one or two sentences."""
        raise NotImplementedError

    def make_table(self, moment: Moment) -> Sequence[Sequence[str]]:
        """Return the figure's data as rows of text, the names of the columns first."""
        raise NotImplementedError

    def make_picture(self, moment: Moment) -> Picture | None:
        """Return the figure as a static picture, or None if the table says it all."""
        raise NotImplementedError

    # Where no JavaScript runs

    def static_html(self) -> str:
        """Return the figure as a picture and a table that need neither kernel nor JavaScript."""
        moment = self.player.moment()
        rows = self.make_table(moment)[: MAX_TABLE_ROWS + 1]
        if len(rows) == 1:
            return f"<p>{escape(self.make_alt(moment))}</p>"
        picture = self.make_picture(moment)
        image = f"<p>{picture.img(self.make_alt(moment))}</p>" if picture else ""
        return f"{image}<details><summary>The same as a table</summary>{html_table(rows)}</details>"

    def __repr__(self) -> str:
        """Return the figure in words; the same in every run."""
        return f"{type(self).__name__}: {self.make_alt(self.player.moment())}"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        own = {"text/html": self.static_html(), "text/plain": repr(self)}
        return {**data, **own}, metadata
