"""Turns a SchedulerOutput into tokens: a vLLM worker whose every tensor has a compiled shape."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# As in the package's own __init__: vLLM is imported only by who needs it.
_HOMES = {
    "Llama": "llama",
    "NeuronModelRunner": "model_runner",
    "NeuronWorker": "worker",
    "RunnerConfig": "config",
}

__all__ = ["Llama", "NeuronModelRunner", "NeuronWorker", "RunnerConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
