"""Draws a live Lab or a recorded Trace: a dashboard, and each of its views by itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# As in the package's own __init__: ipywidgets is imported only when one of these is used.
_HOMES = {
    "Controls": "controls",
    "Dashboard": "dashboard",
    "InputsView": "views.inputs_view",
    "KVMap": "views.kv_map",
    "PaddingView": "views.padding_view",
    "Player": "player",
    "QueueBoard": "views.queue_board",
    "StateMachine": "views.state_machine",
    "TextView": "views.text_view",
    "Timeline": "views.timeline",
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
