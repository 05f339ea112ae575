"""Simulation: the real scheduler classes and vLLM's real KV-cache manager, on a virtual clock.

    result = simulate(Workload.read("azure_conv.csv"), NeuronScheduler, cost_model)
    print(result.metrics())

Nothing of the scheduler is modelled: `schedule()` and `update_from_output()` are called as vLLM's
engine calls them, on vLLM's own request objects. Only the device is missing. A CostModel says how
long each step takes, every request generates as many tokens as the workload says, and the clock
is moved instead of waited for.

Time passes in steps only: a request that arrives during a step is added before the next one, and
a step's tokens are there at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .workload import FILLER_TOKEN

if TYPE_CHECKING:

    pass

EMPTY_STEP_SECONDS = 1e-3
"""What a step takes that schedules nothing: the engine's own work."""

MAX_EMPTY_STEPS = 100
"""So many empty steps in a row, with requests left, are a stall: the simulation ends there."""

SIMULATED_TOKENS = [FILLER_TOKEN]
"""What every request answers in every step. vLLM reads the list and keeps no reference to it."""

NO_TOKENS: list[int] = []
