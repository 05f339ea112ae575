"""What a notebook talks to: a live engine, and the trace of what it did."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# As in the package's own __init__: vLLM is imported only by who needs it.
_HOMES = {"Lab": "session", "Recorder": "recorder", "StepRecord": "trace", "Trace": "trace"}

__all__ = ["Lab", "Recorder", "StepRecord", "Trace"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
