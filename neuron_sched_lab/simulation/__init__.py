"""The real scheduler classes on a virtual clock, with a model of what each step costs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# As in the package's own __init__: vLLM is imported only by who needs it.
_HOMES = {
    "CostModel": "cost_model",
    "FunctionCostModel": "cost_model",
    "MeasuredCostModel": "cost_model",
    "RooflineCostModel": "roofline",
    "SimulationResult": "simulation",
    "calibrate": "calibration",
    "simulate": "simulation",
}

__all__ = [
    "CostModel",
    "FunctionCostModel",
    "MeasuredCostModel",
    "RooflineCostModel",
    "SimulationResult",
    "calibrate",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
