"""Learn and experiment with the scheduler that AWS Neuron puts in front of Trainium 2 in vLLM."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Importing vLLM takes seconds, so a name is imported when it is first asked for: `--help`, the
# CLI's checks and the widgets of a recorded trace do not pay for it.
_HOMES = {
    "HoldbackScheduler": "scheduler",
    "SeparatedScheduler": "scheduler",
    "PaddedScheduler": "scheduler",
    "KVAdmissionScheduler": "scheduler",
    "NeuronScheduler": "scheduler",
    "NeuronAsyncScheduler": "scheduler",
    "NeuronConfig": "scheduler",
    "Lab": "lab",
    "Trace": "lab",
}

__all__ = [
    "HoldbackScheduler",
    "KVAdmissionScheduler",
    "Lab",
    "NeuronAsyncScheduler",
    "NeuronConfig",
    "NeuronScheduler",
    "PaddedScheduler",
    "SeparatedScheduler",
    "Trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
