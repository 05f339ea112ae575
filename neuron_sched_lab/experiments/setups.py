"""Setup: what a run is made with, under a name: a scheduler class and other settings.

Wherever an experiment takes a scheduler, it takes a class, or a mapping of `simulate`'s arguments:

    NeuronScheduler
    {"scheduler": NeuronScheduler, "neuron_config.kv_admission": "banker", "max_num_seqs": 16}

`neuron_config.NAME` sets one key of `neuron_config` and leaves the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..simulation.simulation import SimulationResult
    from ..workloads.workload import Workload

SetupLike: TypeAlias = type | Mapping[str, Any]

NEURON_CONFIG = "neuron_config"


@dataclass(frozen=True)
class Setup:
    """A name and arguments of `simulate`."""

    name: str
    settings: Mapping[str, Any]

    def run(self, workload: Workload, **overrides: Any) -> SimulationResult:
        """Simulate `workload`; `overrides` are arguments of `simulate` that win.

        Raises:
            ValueError: a setting is wrong; it is named.
        """
        from ..simulation.simulation import simulate

        return simulate(workload, **merge_settings(self.settings, overrides))


def make_setups(
    setups: Iterable[SetupLike] | Mapping[str, SetupLike], common: Mapping[str, Any]
) -> list[Setup]:
    """Return each of `setups` with its name, over the settings that all have in `common`.

    Args:
        setups: by name, or without names: a class is then called by its own, a mapping by what
            it sets.
        common: arguments of `simulate`.

    Raises:
        ValueError: one is neither a class nor a mapping, or two have the same name.
    """
    named = setups.items() if isinstance(setups, Mapping) else ((name_of(s), s) for s in setups)
    made: list[Setup] = []
    for name, setup in named:
        own = {"scheduler": setup} if isinstance(setup, type) else setup
        if not isinstance(own, Mapping):
            raise ValueError(
                f"setup {name!r}: {setup!r} must be a scheduler class or a mapping of arguments "
                f"of simulate()"
            )
        if name in {other.name for other in made}:
            raise ValueError(f"setup {name!r}: two have this name; give a dict of name and setup")
        made.append(Setup(name, merge_settings(common, own)))
    return made


def merge_settings(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all layers, later ones win; `neuron_config` is merged by key.

    Raises:
        ValueError: `neuron_config` is no mapping, or a dotted name begins with something else.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            head, dot, key = name.partition(".")
            if dot and head != NEURON_CONFIG:
                raise ValueError(f"{name}: only settings of {NEURON_CONFIG!r} have a dot")
            if head != NEURON_CONFIG or (value is None and not dot):
                merged[name] = value
                continue
            if not dot and not isinstance(value, Mapping):
                raise ValueError(f"{NEURON_CONFIG}: {value!r} must be a dict")
            more = {key: value} if dot else value
            merged[NEURON_CONFIG] = {**(merged.get(NEURON_CONFIG) or {}), **more}
    return merged


def name_of(value: Any) -> str:
    """Return a short name for a setup or for the value of a setting."""
    if isinstance(value, Mapping):
        return (
            "defaults"
            if not value
            else ", ".join(
                name_of(v) if k == "scheduler" else f"{k.rpartition('.')[2]}={name_of(v)}"
                for k, v in value.items()
            )
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(name_of, value)) + "]"
    if isinstance(value, type) or callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if value is None or isinstance(value, (str, int, float)):
        return str(value)
    return type(value).__name__
