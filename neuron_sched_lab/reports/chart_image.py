"""Charts as PNG or SVG, drawn by matplotlib: no browser, which plotly's own export would need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..trace.board import printable
from .chart import BAR, HEIGHT, LINE, WIDTH, Chart, Series, colour, is_labelled_below, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 100
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 2, 3)))
MARKERS = ("o", "s", "D", "X", "^", "P")
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
TITLE_LENGTH = 92

STYLE: Any = {
    # Text stays text: small files, and the reader's own font.
    "svg.fonttype": "none",
    # Else ids in the file are random.
    "svg.hashsalt": "neuron_sched_lab",
    # A name may hold dollar signs.
    "text.parse_math": False,
    "font.size": 9,
    # One name only: every text in an SVG repeats the whole list.
    "font.sans-serif": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(charts: Sequence[Chart], file_format: str, alt_text: str) -> bytes:
    """Return the charts, one below the other, as the bytes of a file.

    Args:
        charts: at least one.
        file_format: "png" or "svg".
        alt_text: what they show, in words; written into the file.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        size = (WIDTH / DPI, HEIGHT / DPI * len(charts))
        figure = Figure(figsize=size, dpi=DPI, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(charts), squeeze=False)[:, 0]
        for chart, place in zip(charts, axes, strict=True):
            _draw(chart, place)
        out = BytesIO()
        # What changes from day to day and from version to version is left out.
        words = printable(alt_text, len(alt_text) * 4)
        metadata = {"Description": words} | (
            {"Date": None, "Creator": None} if file_format == "svg" else {"Software": None}
        )
        figure.savefig(out, format=file_format, metadata=metadata)
    return _compact(out.getvalue()) if file_format == "svg" else out.getvalue()


def _compact(svg: bytes) -> bytes:
    """Return a picture of half the bytes that looks the same; notebooks store it.

    Only what stands inside of tags is rewritten, never a text that is shown.
    """
    text = svg.decode()
    used = set(re.findall(r"#(\w+)", text))
    tags = re.sub(r"<[^>]+>", lambda tag: _compact_tag(tag.group(), used), text)
    # XML's prologue is optional.
    return re.sub(r">\s+<", "><", tags[tags.index("<svg ") :]).encode()


def _compact_tag(tag: str, used_ids: set[str]) -> str:
    tag = re.sub(r' id="(\w+)"', lambda m: m.group() if m.group(1) in used_ids else "", tag)
    # Each text names its font; once, at the top, is enough.
    tag = tag.replace("font-family: 'DejaVu Sans', sans-serif; ", "")
    tag = tag.replace("<svg ", '<svg font-family="DejaVu Sans, sans-serif" ', 1)
    # A tick's own path has this style already.
    tag = re.sub(r'(<use .*) style="stroke: #000000; stroke-width: 0.8"', r"\1", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number.group()):.1f}", tag)
    return re.sub(r"\s+", " ", tag)


def _draw(chart: Chart, axes: Axes) -> None:
    if chart.kind == BAR:
        _draw_bars(chart, axes)
    else:
        for place, series in enumerate(chart.series):
            _draw_line(series, place, axes, has_markers=chart.kind == LINE)
    axes.set_title(fill(plain(chart.title), TITLE_LENGTH), loc="left", fontsize=10)
    axes.set_xlabel(plain(chart.x_title))
    axes.set_ylabel(plain(chart.y_title))
    axes.margins(x=0.08, y=0.1)
    if chart.ratio:
        axes.set_yscale("log")
        axes.axhline(chart.base, color="black", linewidth=0.8)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    if chart.percent:
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    if chart.x_values:
        axes.set_xticks(chart.x_values, [f"{x:g}" for x in chart.x_values])
    if len(chart.series) > 1:
        handles, _ = axes.get_legend_handles_labels()
        axes.legend(handles, [_legend(s) for s in chart.series], frameon=False)


def _draw_line(series: Series, place: int, axes: Axes, *, has_markers: bool) -> None:
    axes.plot(
        series.x,
        series.y,
        label=_legend(series),
        color=colour(place),
        linestyle=DASHES[place % len(DASHES)],
        marker=MARKERS[place % len(MARKERS)] if has_markers else None,
    )
    # Lines that run close to each other have their labels on different sides.
    below = is_labelled_below(place)
    for x, y, label in zip(series.x, series.y, series.labels, strict=bool(series.labels)):
        axes.annotate(
            plain(label),
            (x, y),
            xytext=(5, -5 if below else 5),
            textcoords="offset points",
            verticalalignment="top" if below else "bottom",
        )


def _draw_bars(chart: Chart, axes: Axes) -> None:
    width = 0.8 / max(len(chart.series), 1)
    for place, series in enumerate(chart.series):
        offset = (place - (len(chart.series) - 1) / 2) * width
        bars = axes.bar(
            [i + offset for i in range(len(series.x))],
            [y - chart.base for y in series.y],
            width,
            bottom=chart.base,
            label=_legend(series),
            color=colour(place),
            hatch=HATCHES[place % len(HATCHES)],
            edgecolor="white",
        )
        axes.bar_label(
            bars, labels=[plain(label) for label in series.labels] or None, padding=2, fontsize=8
        )
    names = [plain(str(x)) for x in chart.series[0].x] if chart.series else []
    room = max(TITLE_LENGTH // max(len(names), 1) - 4, 8)
    axes.set_xticks(range(len(names)), [fill(name, room) for name in names])


def _legend(series: Series) -> str:
    # matplotlib leaves names out that begin with an underscore.
    return f" {plain(series.name)}"
