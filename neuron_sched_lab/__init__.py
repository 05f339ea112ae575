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
    "Lab": "engine.lab",
    "Trace": "trace.trace",
    "Dashboard": "widgets",
    "Workload": "workloads.workload",
    "WorkloadRequest": "workloads.request",
    "simulate": "simulation.simulation",
    "CostModel": "simulation.cost_model",
    "FunctionCostModel": "simulation.cost_model",
    "MeasuredCostModel": "simulation.cost_model",
    "RooflineCostModel": "simulation.roofline",
    "calibrate": "simulation.calibration",
    "SLO": "trace.metrics",
    "compare": "experiments.comparison",
    "sweep": "experiments.sweeps",
}

__all__ = [
    "SLO",
    "CostModel",
    "Dashboard",
    "FunctionCostModel",
    "HoldbackScheduler",
    "KVAdmissionScheduler",
    "Lab",
    "MeasuredCostModel",
    "NeuronAsyncScheduler",
    "NeuronConfig",
    "NeuronScheduler",
    "PaddedScheduler",
    "RooflineCostModel",
    "SeparatedScheduler",
    "Trace",
    "Workload",
    "WorkloadRequest",
    "calibrate",
    "compare",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
