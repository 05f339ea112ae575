"""Experiment: a question, a plot that answers it, its table and the answer, as a page or a picture.

A report is one HTML file that needs no network, or one PNG.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chart import Chart
from .chart_image import draw
from .tables import table_to_html, table_to_text

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


SUFFIXES = (".html", ".png")

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:;
 style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
 padding: 0 1rem }}
pre {{ white-space: pre-wrap }}
table {{ border-collapse: collapse; display: block; overflow-x: auto }}
th, td {{ border: 1px solid #888; padding: .2rem .6rem; text-align: right }}
th:first-child, td:first-child {{ text-align: left }}
figure {{ margin: 1rem 0 }}
</style>
{script}</head><body><h1>{title}</h1>
{body}
</body></html>
"""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What came of an experiment. At the end of a notebook cell it shows itself.

    Attributes:
        question: what was asked.
        answer: one sentence, computed from the table.
        table: the figures, one row a run; times in seconds unless the column says otherwise.
        chart: the plot, as data.
        alt_text: what the plot shows, in words.
        notes: what to know of the runs: refused requests, stalls, crashes.
        failed: whether a run crashed or stalled, or had all its requests refused.
    """

    question: str
    answer: str
    table: DataFrame
    chart: Chart
    alt_text: str
    notes: tuple[str, ...] = ()
    failed: bool = False

    @cached_property
    def figure(self) -> Figure:
        """The plot as a plotly figure."""
        return self.chart.to_plotly()

    @property
    def details(self) -> str:
        """More lines in words, shown between answer and table."""
        return ""

    def save(self, path: str | Path) -> None:
        """Write a report, .html or .png; see `write`."""
        write(path, [self])

    def svg(self) -> bytes:
        """Return the plot as an SVG file, its alternative text in it."""
        return draw([self.chart], "svg", self.alt_text)

    def __str__(self) -> str:
        """Return question, answer, table and notes as text."""
        details = ["", self.details] if self.details else []
        parts = [self.question, self.answer, *details, "", table_to_text(self.table)]
        return "\n".join([*parts, *(f"Note: {note}" for note in self.notes)])

    def words_as_html(self) -> str:
        """Return details, table and notes as HTML."""
        details = f"<pre>{escape(self.details)}</pre>" if self.details else ""
        notes = "".join(f"<p>Note: {escape(note)}</p>" for note in self.notes)
        return f"{details}{table_to_html(self.table)}{notes}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return it as text, and as HTML with a picture that has its alternative text."""
        # The alternative text stands beside it; once is enough for a notebook to store.
        picture = b64encode(draw([self.chart], "svg", "")).decode()
        source = f"data:image/svg+xml;base64,{picture}"
        html = (
            f'<figure style="margin:0"><img style="max-width:100%" alt="{escape(self.alt_text)}" '
            f'src="{source}"><figcaption><b>{escape(self.question)}</b> {escape(self.answer)}'
            f"</figcaption></figure>{self.words_as_html()}"
        )
        return {"text/plain": str(self), "text/html": html}


def check_path(path: str | Path) -> Path:
    """Return `path` if a report can be written there; to be asked before hours of work.

    Raises:
        ValueError: its suffix is not one of SUFFIXES, or its folder is not there.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"report: {path} must end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"report: the folder {path.parent} does not exist; make it first")
    return path


def write(path: str | Path, experiments: Sequence[Experiment], title: str = "") -> None:
    """Write a report.

    HTML holds plotly's library, so it opens offline; tables, answers and alternative texts stand
    beside the plots. PNG holds the plots alone, the words in its metadata.

    Args:
        path: ends in .html or .png.
        experiments: at least one.
        title: of the page; by default the first question.

    Raises:
        ValueError: see `check_path`; or there is nothing to write.
    """
    path = check_path(path)
    if not experiments:
        raise ValueError(f"report: {path}: there is no experiment to write")
    if path.suffix.lower() == ".png":
        path.write_bytes(to_png(experiments))
    else:
        path.write_text(to_html(experiments, title), encoding="utf-8")


def to_png(experiments: Sequence[Experiment]) -> bytes:
    """Return the plots, one below the other, as a PNG."""
    return draw([e.chart for e in experiments], "png", " ".join(e.alt_text for e in experiments))


def to_html(experiments: Sequence[Experiment], title: str = "") -> str:
    """Return the page."""
    from plotly.offline import get_plotlyjs

    title = title or experiments[0].question
    return PAGE.format(
        title=escape(title),
        script=f"<script>{get_plotlyjs()}</script>",
        body="\n".join(_section(e, f"plot{i}", title) for i, e in enumerate(experiments)),
    )


def _section(experiment: Experiment, plot_id: str, title: str) -> str:
    from plotly.io import to_html as figure_to_html

    plot = figure_to_html(
        experiment.figure, full_html=False, include_plotlyjs=False, div_id=plot_id
    )
    alt = escape(experiment.alt_text)
    question = experiment.question
    heading = "" if question == title else f"<h2>{escape(question)}</h2>"
    return (
        f"<section>{heading}<p>{escape(experiment.answer)}</p>"
        f'<figure role="img" aria-label="{alt}">{plot}<figcaption>{alt}</figcaption></figure>'
        f"{experiment.words_as_html()}</section>"
    )
