"""What Lab and simulate() ask of their settings, before anything is built with them.

Each check raises one ValueError that names the setting, the value, the rule and the fix. What only
vLLM can judge is left to vLLM; `vllm_errors` gives its refusals the same form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from vllm.v1.core.sched.interface import SchedulerInterface


def check_scheduler(scheduler: object) -> None:
    """Refuse what is no vLLM scheduler class."""
    if not (isinstance(scheduler, type) and issubclass(scheduler, SchedulerInterface)):
        raise ValueError(
            f"scheduler: {scheduler!r} is no vLLM scheduler class; give a class such as "
            f"NeuronScheduler"
        )


def check_workload(workload: object) -> None:
    """Refuse what is no Workload."""
    from .workload import Workload

    if not isinstance(workload, Workload):
        raise ValueError(
            f"workload: {workload!r} is no Workload; give Workload.read(file) or one of "
            f"workload_generators"
        )


def check_ints(at_least: int = 1, **settings: object) -> None:
    """Refuse what is no plain int of at least `at_least`."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ValueError(f"{name}: {value!r} must be an int of at least {at_least}")


def check_bools(**settings: object) -> None:
    """Refuse what is neither True nor False."""
    for name, value in settings.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name}: {value!r} must be True or False")


def check_limits(
    *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, block_size: int
) -> None:
    """Refuse limits that no engine can work with."""
    check_ints(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=block_size,
    )
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens: {max_num_batched_tokens} must be at least max_num_seqs = "
            f"{max_num_seqs}, one token for each; raise it or lower max_num_seqs"
        )


def check_neuron_config(neuron_config: object) -> None:
    """Refuse what is no dict; what stands in it is for NeuronConfig to judge."""
    if neuron_config is not None and not isinstance(neuron_config, Mapping):
        raise ValueError(
            f'neuron_config: {neuron_config!r} must be a dict, such as {{"kv_admission": "banker"}}'
        )


def check_names(names: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Refuse a name that is not among `known`; offer the nearest if there is one that is like it.

    Args:
        names: as the user wrote them.
        known: those that `owner` takes.
        owner: the function or class that takes them.
    """
    known = list(known)
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            fix = f"did you mean {nearest[0]!r}?" if nearest else f"help({owner}) lists them"
            raise ValueError(f"{name}: {owner}() has no such setting; {fix}")


def argument_names(function: Callable[..., Any]) -> list[str]:
    """Return the names that a function or a class takes as keywords, `**names` left out."""
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


@contextmanager
def vllm_errors(**sizes: object) -> Iterator[None]:
    """Turn the refusals that are not meant for users into one line each.

    They are pydantic's, four lines that name vLLM's classes, and the allocator's.

    Args:
        sizes: settings that decide how much memory is taken.
    """
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        text = " ".join(first["msg"].removeprefix("Value error, ").split())
        if first["loc"]:  # else vLLM's own text, which names the setting
            text = f"{first['loc'][0]}: {first['input']!r} is refused by vLLM: {text}"
        raise ValueError(text) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        given = ", ".join(f"{name} = {value}" for name, value in sizes.items())
        raise ValueError(f"{given}: together they do not fit in memory; lower one") from error
