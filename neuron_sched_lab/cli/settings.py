"""Settings on the command line: `NAME=VALUE`, checked by name before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from .schedulers import load_scheduler

NOT_FOR_THE_COMMAND_LINE = {"workload", "cost_model", "neuron_config", "keep_records"}


def read_setup(text: str) -> dict[str, Any]:
    """Return the settings in `SCHEDULER` or `NAME=VALUE` or several of them, with commas.

    Raises:
        ValueError: a part is neither, or there is no such setting or scheduler.
    """
    setup: dict[str, Any] = {}
    for part in _split(text):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = "scheduler", part
        key = setting_key(name)
        if key in setup:
            raise ValueError(f"{text!r}: {name} stands twice; give it once")
        setup[key] = read_value(key, value)
    return setup


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return settings given as `NAME=VALUE`.

    Raises:
        ValueError: one has no `=`, or there is no such setting.
    """
    settings = {}
    for text in texts:
        name, value = _name_and_value(text)
        settings[name] = read_value(name, value)
    return settings


def read_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return a grid given as `NAME=VALUE,VALUE,...`.

    Raises:
        ValueError: one has no `=` or no value, or there is no such setting.
    """
    grid = {}
    for text in texts:
        name, values = _name_and_value(text)
        grid[name] = [read_value(name, value) for value in _split(values)]
    return grid


def read_value(name: str, text: str) -> Any:
    """Return a value: a scheduler's class, JSON, or the text itself."""
    if name == "scheduler":
        return load_scheduler(text)
    try:
        return json.loads(text)
    except ValueError:
        return {"None": None, "True": True, "False": False}.get(text, text)


def setting_key(name: str) -> str:
    """Return what a setting is called in an experiment; see `lab.setups`.

    Raises:
        ValueError: there is none of that name.
    """
    from ..lab.environment import prepare_environment

    prepare_environment()
    from ..scheduler import NeuronConfig

    neuron_config = [f.name for f in fields(NeuronConfig)]
    plain = name.removeprefix("neuron_config.")
    if plain in neuron_config:
        return f"neuron_config.{plain}"
    known = [*_simulate_arguments(), *neuron_config]
    if name in known:
        return name
    nearest = get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"{name!r} is no setting; did you mean {nearest!r}? (known: {', '.join(known)})"
    )


def _simulate_arguments() -> list[str]:
    """Return the arguments of simulate() and the fields of vLLM's SchedulerConfig."""
    from vllm.config import SchedulerConfig

    from ..lab.simulation import simulate

    own = [p.name for p in signature(simulate).parameters.values()
           if p.kind is not Parameter.VAR_KEYWORD]  # fmt: skip
    vllm = [f.name for f in fields(SchedulerConfig) if f.init]
    return [n for n in dict.fromkeys((*own, *vllm)) if n not in NOT_FOR_THE_COMMAND_LINE]


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"{text!r} must be NAME=VALUE, such as max_num_seqs=16")
    return setting_key(name), value


def _split(text: str) -> Sequence[str]:
    """Return what stands between the commas, those in brackets left alone."""
    parts, depth = [""], 0
    for char in text:
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in (p.strip() for p in parts) if part]
