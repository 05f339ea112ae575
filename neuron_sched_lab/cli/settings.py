"""Settings on the command line: `NAME=VALUE`, checked by name before anything runs."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import fields
from typing import Any

from ..settings.arguments import INTS, check_setting
from .options import suggest
from .schedulers import load_scheduler

NOT_FOR_THE_COMMAND_LINE = {
    "workload", "cost_model", "neuron_config", "keep_records",
    "scheduler_cls",  # vLLM's name for what `scheduler` sets here
}  # fmt: skip

ON_THEIR_OWN = ("kv_admission", "max_consecutive_prefills")
"""Settings of neuron_config whose rules look at no other setting."""


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
    if not setup:
        raise ValueError(f"{text!r} is empty; give a scheduler, NAME=VALUE, or both with a comma")
    return setup


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return settings given as `NAME=VALUE`.

    Raises:
        ValueError: one has no `=`, or there is no such setting.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, value = _name_and_value(text, settings)
        settings[name] = read_value(name, value)
    return settings


def read_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return a grid given as `NAME=VALUE,VALUE,...`.

    Raises:
        ValueError: one has no `=` or no value, or there is no such setting.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, values = _name_and_value(text, grid)
        grid[name] = [read_value(name, value) for value in _split(values)]
        if not grid[name]:
            raise ValueError(f"--set {text}: there is no value in it; give NAME=VALUE,VALUE,...")
    return grid


def read_value(name: str, text: str) -> Any:
    """Return a value: a scheduler's class, JSON, or the text itself.

    Raises:
        ValueError: it is wrong whatever the other settings are.
    """
    if name == "scheduler":
        return load_scheduler(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"None": None, "True": True, "False": False}.get(text, text)
    check_setting(name, value)
    _check_as_neuron_config(name, value)
    _check_as_vllm_does(name, value)
    return value


def _check_as_neuron_config(name: str, value: Any) -> None:
    from ..scheduler import NeuronConfig

    plain = name.removeprefix("neuron_config.")
    if plain in ON_THEIR_OWN:
        NeuronConfig.from_dict(
            {plain: value}, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1
        )


def _check_as_vllm_does(name: str, value: Any) -> None:
    """Check a field of vLLM's SchedulerConfig by its type; rules on several are left to vLLM."""
    from pydantic import ValidationError
    from vllm.config import SchedulerConfig

    if name in INTS or name not in _scheduler_config_fields():
        return
    try:
        SchedulerConfig(**{"max_model_len": 8192, "is_encoder_decoder": False, name: value})
    except ValidationError as error:
        # An error that names no field comes from a rule on several fields.
        for found in error.errors():
            if found["loc"][:1] == (name,):
                raise ValueError(f"{name}: {value!r}: {found['msg']}; change it") from error


def setting_key(name: str) -> str:
    """Return what a setting is called in an experiment; see `experiments.setups`.

    Raises:
        ValueError: there is none of that name.
    """
    from ..settings.environment import prepare_environment

    prepare_environment()
    from ..scheduler import NeuronConfig
    from ..settings.arguments import argument_names
    from ..simulation.simulation import simulate

    neuron_config = [f.name for f in fields(NeuronConfig)]
    plain = name.removeprefix("neuron_config.")
    if plain in neuron_config:
        return f"neuron_config.{plain}"
    ours, vllms = [*argument_names(simulate), *neuron_config], _scheduler_config_fields()
    known = [n for n in (*ours, *vllms) if n not in NOT_FOR_THE_COMMAND_LINE]
    if name in known:
        return name
    fix = suggest(name, known, listed=dict.fromkeys(n for n in known if n in ours))
    more = "" if fix.endswith("?") else ", or a field of vLLM's SchedulerConfig"
    raise ValueError(f"{name!r} is no setting; {fix}{more}")


def _scheduler_config_fields() -> list[str]:
    from vllm.config import SchedulerConfig

    return [f.name for f in fields(SchedulerConfig) if f.init]


def _name_and_value(text: str, before: Container[str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set: {text!r} must be NAME=VALUE, such as max_num_seqs=16")
    key = setting_key(name)
    if not value:
        raise ValueError(f"--set: {name} has no value; write {name}=VALUE")
    if key in before:
        raise ValueError(f"--set: {name} stands twice; give it once")
    return key, value


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
