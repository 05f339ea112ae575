"""Experiment: a question, a plot that answers it, its table, and the answer in words."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chart import Chart
from .tables import table_to_html, table_to_text

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


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
        """Write a report, .html or .png; see `report.write`."""
        from .report import write

        write(path, [self])

    def svg(self) -> bytes:
        """Return the plot as an SVG file, its alternative text in it."""
        from .chart_image import draw

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
        from .chart_image import draw

        # The alternative text stands beside it; once is enough for a notebook to store.
        picture = b64encode(draw([self.chart], "svg", "")).decode()
        source = f"data:image/svg+xml;base64,{picture}"
        html = (
            f'<figure style="margin:0"><img style="max-width:100%" alt="{escape(self.alt_text)}" '
            f'src="{source}"><figcaption><b>{escape(self.question)}</b> {escape(self.answer)}'
            f"</figcaption></figure>{self.words_as_html()}"
        )
        return {"text/plain": str(self), "text/html": html}
