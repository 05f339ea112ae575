"""Chart: what a plot shows, as data; drawn by plotly in a notebook, by matplotlib into a file.

Colours are Okabe and Ito's, which people who are colour-blind can tell apart. Nothing is told
by colour alone: lines differ in dashes and markers as well, bars bear their numbers. Charts bring
their own white paper, so they read the same on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ..trace.board import printable
from .metrics_plot import COLOURS, DASHES

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LINE, CURVE, BAR = "line", "curve", "bar"
"""Kinds of chart: few points with markers, many without, a bar for each x."""

MARKERS = ("circle", "square", "diamond", "x", "triangle-up", "cross")
PATTERNS = ("", "/", ".", "x", "\\", "+")
MAX_TEXT = 200
"""Characters of a title or a name."""

WIDTH, HEIGHT = 720, 420
"""Pixels."""


class Series(NamedTuple):
    """One line, or the bars of one colour.

    Attributes:
        name: for the legend.
        x: numbers, or names for bars.
        y: numbers of at least 0.
        labels: text at each point, or nothing.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A plot that answers one question.

    Attributes:
        title: the answer, or the question.
        x_title: what x is, with its unit.
        y_title: what y is, with its unit.
        series: what is drawn.
        kind: LINE, CURVE or BAR.
        percent: y is a share, shown in percent.
        ratio: y is a ratio above 0, shown on a logarithmic scale; bars begin at 1.
        x_values: the ticks where x is a few numbers; else chosen by the plot.
    """

    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    kind: str = LINE
    percent: bool = False
    ratio: bool = False
    x_values: tuple[float, ...] = ()

    @property
    def base(self) -> int:
        """Where bars begin."""
        return 1 if self.ratio else 0

    def to_plotly(self) -> Figure:
        """Return it as a plotly figure."""
        from plotly.graph_objects import Figure

        figure = Figure()
        for place, series in enumerate(self.series):
            name, labels = markup(series.name), [markup(label) for label in series.labels]
            if self.kind == BAR:
                figure.add_bar(
                    x=[markup(str(x)) for x in series.x],
                    # Plotly counts a bar's height from its base.
                    y=[y - self.base for y in series.y],
                    base=self.base,
                    name=name,
                    text=labels,
                    textposition="outside",
                    cliponaxis=False,
                    marker={
                        "color": colour(place),
                        "pattern_shape": PATTERNS[place % len(PATTERNS)],
                    },
                )
                continue
            figure.add_scatter(
                x=list(series.x),
                y=list(series.y),
                name=name,
                text=labels or None,
                textposition="bottom right" if is_labelled_below(place) else "top right",
                cliponaxis=False,
                mode="lines" + ("+markers" if self.kind == LINE else "") + "+text" * bool(labels),
                line={"color": colour(place), "dash": DASHES[place % len(DASHES)]},
                marker={"symbol": MARKERS[place % len(MARKERS)], "size": 9},
            )
        figure.update_layout(
            template="none",
            title={"text": markup(self.title), "font": {"size": 14}, "x": 0.02},
            xaxis_title=markup(self.x_title),
            yaxis_title=markup(self.y_title),
            width=WIDTH,
            height=HEIGHT,
            showlegend=len(self.series) > 1,
        )
        figure.update_xaxes(automargin=True)
        if self.ratio:
            figure.update_yaxes(type="log")
        else:
            figure.update_yaxes(rangemode="tozero")
        if self.percent:
            figure.update_yaxes(tickformat=".0%")
        if self.x_values:
            figure.update_xaxes(tickvals=list(self.x_values))
        return figure


def plain(text: str) -> str:
    """Return `text` for a picture: what cannot be seen, or stand in an SVG, spelled out."""
    return printable(text, MAX_TEXT)


def markup(text: str) -> str:
    """Return `text` for plotly, which takes some HTML for markup."""
    return escape(plain(text), quote=False)


def colour(place: int) -> str:
    """Return the colour of series number `place`."""
    return COLOURS[place % len(COLOURS)]


def is_labelled_below(place: int) -> bool:
    """Tell whether the labels of series number `place` stand below its line."""
    return place % 2 == 1
