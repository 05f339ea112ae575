"""Helpers for experiments that run many cells: one simulation for each setting."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from .sweeps import sweep

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..workloads.workload import Workload


def run_cells(cells: list[dict[str, Any]], workload: Workload, **options: Any) -> DataFrame:
    """Run the cells; return their figures.

    Raises:
        ValueError: one failed.
    """
    result = sweep(cells, workload, **options)
    if len(result.failures):
        failed = result.failures.iloc[0]
        raise ValueError(f"{len(result.failures)} runs failed, the first: {failed['error']}")
    return result.table


def get_setting(name: str, settings: Mapping[str, Any]) -> int:
    """Return a setting as given, or as `simulate` has it by default."""
    from ..simulation.simulation import simulate

    return settings.get(name, signature(simulate).parameters[name].default)
