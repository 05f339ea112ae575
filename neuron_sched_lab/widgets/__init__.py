"""Draws a live Lab or a recorded Trace: a dashboard, and each of its views by itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# As in the package's own __init__: ipywidgets is imported only by who draws.
_HOMES = {
    "Controls": "controls",
    "Dashboard": "dashboard",
    "InputsView": "inputs_view",
    "KVMap": "kv_map",
    "PaddingView": "padding_view",
    "Player": "player",
    "QueueBoard": "queue_board",
    "StateMachine": "state_machine",
    "TextView": "text_view",
    "Timeline": "timeline",
}

__all__ = [
    "Controls",
    "Dashboard",
    "InputsView",
    "KVMap",
    "PaddingView",
    "Player",
    "QueueBoard",
    "StateMachine",
    "TextView",
    "Timeline",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
