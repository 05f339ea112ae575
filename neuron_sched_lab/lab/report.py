"""Reports of experiments: one HTML file that needs no network, or one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .experiment import Experiment

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
    from .chart_image import draw

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
