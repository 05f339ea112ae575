"""Letters and colours of what a request can be doing; the same in every view.

Colours: Okabe and Ito's, which people who are colour-blind can tell apart. Each is used with
black text on it (contrast 5:1 or more), and never without the letter or a shape of its own.
"""

from __future__ import annotations

from typing import NamedTuple


class Activity(NamedTuple):
    """One thing that a request can be doing."""

    letter: str
    title: str
    colour: str


ACTIVITIES = {
    "waiting": Activity("W", "Waiting", "#E69F00"),
    "held_back": Activity("B", "Held back", "#F0E442"),
    "prefill": Activity("P", "Prefill", "#56B4E9"),
    "decode": Activity("D", "Decode", "#009E73"),
    "stalled": Activity("S", "Not scheduled", "#D9D9D9"),
    "hidden": Activity("H", "Hidden decodes", "#CC79A7"),
    "finished": Activity("F", "Finished", "#BDBDBD"),
    "aborted": Activity("A", "Aborted", "#D55E00"),
}

OWNERS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#9AB1C7")
"""Colours of requests in the KV map; each also bears its number."""

INK, DIM, LINE, PAPER, HATCH = "#1f2328", "#59636e", "#d1d9e0", "#ffffff", "#8c959f"
"""Colours of the static pictures; PAPER is behind them, so they look the same on dark pages."""
