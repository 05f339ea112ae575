"""Plots of runs, each of which answers one question, with its alternative text.

    plot = plot_latency({"Neuron": a.log, "vLLM": b.log}, "ttft")
    plot.figure.show()
    print(plot.alt)

Colours are Okabe and Ito's, which people who are colour-blind can tell apart; curves differ in
their dashes as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..trace.run_columns import requests_frame, steps_frame

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..trace.run_log import RunLog

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MAX_POINTS = 500
"""Points of a curve; more are not seen, and make a notebook large."""

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "time from arrival to last token",
    "queue": "time until first scheduled",
}


class Plot(NamedTuple):
    """A figure and what it shows, in words.

    Attributes:
        figure: plotly's.
        alt: alternative text: the question, and the numbers that answer it.
    """

    figure: Figure
    alt: str


def plot_latency(runs: Mapping[str, RunLog], latency: str = "ttft") -> Plot:
    """Return the share of requests served within a time: which run keeps more of them short?

    Args:
        runs: logs by name.
        latency: one of LATENCIES.

    Raises:
        ValueError: no such latency.
    """
    if latency not in LATENCIES:
        raise ValueError(f"latency: {latency!r} must be one of {', '.join(LATENCIES)}")
    figure = _figure(f"{LATENCIES[latency]}, seconds", "share of requests")
    words = []
    for place, (name, log) in enumerate(runs.items()):
        values = requests_frame(log)[latency].dropna().to_numpy()
        shares = np.linspace(0, 1, min(MAX_POINTS, max(len(values), 1)))
        if len(values):
            times = np.quantile(values, shares)
            figure.add_scatter(x=times, y=shares, name=name, line=_line(place))
            p50, p99 = (float(np.quantile(values, share)) for share in (0.5, 0.99))
            words.append(f"{name}: half within {p50:.3g} s, 99 % within {p99:.3g} s")
        else:
            words.append(f"{name}: no request finished")
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    alt = f"Share of requests by {LATENCIES[latency]}, one curve a run. {'; '.join(words)}."
    return Plot(figure, alt)


def plot_load(log: RunLog) -> Plot:
    """Return running and waiting requests over time: where does the queue build up?"""
    steps = steps_frame(log)
    figure = _figure("time, seconds", "requests")
    if not steps.empty:
        edges = np.linspace(0, steps["end"].iloc[-1], MAX_POINTS)
        at = np.minimum(np.searchsorted(steps["end"], edges), len(steps) - 1)
        for place, column in enumerate(("running", "waiting")):
            figure.add_scatter(x=edges, y=steps[column].iloc[at], name=column, line=_line(place))
    most = steps[["running", "waiting"]].max()
    alt = (
        f"Requests over time. At most {most['running']:g} run and {most['waiting']:g} wait at once."
        if not steps.empty
        else "Requests over time. There was no step."
    )
    return Plot(figure, alt)


def _figure(x: str, y: str) -> Figure:
    from plotly.graph_objects import Figure

    figure = Figure()
    figure.update_layout(
        template="none", xaxis_title=x, yaxis_title=y, width=640, height=360, showlegend=True
    )
    return figure


def _line(place: int) -> dict[str, str]:
    return {"color": COLOURS[place % len(COLOURS)], "dash": DASHES[place % len(DASHES)]}
