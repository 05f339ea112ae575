"""Checks of single arguments: for Lab and simulate(), the workload generators and the command line.

Each check raises one ValueError that names the setting, the value, the rule and the fix. Importing
this module does not load vLLM. What only vLLM can judge is left to vLLM; `vllm_errors` gives its
refusals the same form. What several settings must fulfil together is for NeuronConfig to check.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeGuard

from pydantic import ValidationError


class Range(NamedTuple):
    """Smallest and largest int that a setting takes."""

    least: int
    most: int


MAX_COUNT = 2**40
"""Most requests, steps and the like."""

INTS = {
    "max_num_seqs": Range(1, 2**16),
    "max_num_batched_tokens": Range(1, 2**20),
    "max_model_len": Range(1, 2**24),
    "block_size": Range(1, 2**16),
    # vLLM keeps one, the null block.
    "num_kv_blocks": Range(2, MAX_COUNT),
    "max_steps": Range(1, MAX_COUNT),
}
"""The upper limits are far beyond any machine: vLLM and the search for ladders make tables of that
size, so a slip of some zeros would take minutes and all memory before anything is said."""

OPTIONAL = {"num_kv_blocks", "max_steps"}
BOOLS = {"enable_prefix_caching", "fast_forward", "async_scheduling"}


def refusal(name: str, value: object, rule: str, fix: str) -> ValueError:
    """Return the error of a setting, in the one form that all have."""
    return ValueError(f"{name}: {value!r:.80} must be {rule}; {fix}")


def check_int(name: str, value: object, limits: Range) -> None:
    """Raise ValueError unless `value` is a plain int within its limits.

    Raises:
        ValueError: names the setting, the value, the rule and the fix.
    """
    check_ints(limits.least, **{name: value})
    if isinstance(value, int) and value > limits.most:
        raise refusal(name, value, f"at most {limits.most}", "lower it")


def check_ints(at_least: int = 1, **settings: object) -> None:
    """Raise ValueError unless each setting is a plain int of at least `at_least`.

    Raises:
        ValueError: names the setting, the value, the rule and the fix.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise refusal(name, value, f"an int of at least {at_least}", "give such a number")


def check_setting(name: str, value: object) -> None:
    """Check one setting by itself; a name that is not in the tables above passes.

    Raises:
        ValueError: names the setting, the value, the rule and the fix.
    """
    if name in INTS and not (value is None and name in OPTIONAL):
        check_int(name, value, INTS[name])
    if name in BOOLS:
        check_bools(**{name: value})


def check_bools(**settings: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ValueError: names the setting, the value, the rule and the fix.
    """
    for name, value in settings.items():
        if not isinstance(value, bool):
            raise refusal(name, value, "True or False", "give one of the two")


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether `value` is an int or a float; True and False are neither."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_positive(**settings: object) -> None:
    """Refuse anything but finite numbers above 0.

    Raises:
        ValueError: names the setting, the value, the rule and the fix.
    """
    for name, value in settings.items():
        # Also false for NaN.
        if not (is_number(value) and 0 < value < math.inf):
            raise refusal(name, value, "above 0, a finite number", "give such a number")


def check_scheduler(scheduler: object) -> None:
    """Refuse anything but a vLLM scheduler class."""
    from vllm.v1.core.sched.interface import SchedulerInterface  # whoever has one has loaded vLLM

    if not (isinstance(scheduler, type) and issubclass(scheduler, SchedulerInterface)):
        raise ValueError(
            f"scheduler: {scheduler!r} is no vLLM scheduler class; give a class such as "
            f"NeuronScheduler"
        )


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
    """Refuse anything but a dict or None; NeuronConfig checks what is in it."""
    if neuron_config is not None and not isinstance(neuron_config, Mapping):
        raise ValueError(
            f'neuron_config: {neuron_config!r} must be a dict, such as {{"kv_admission": "banker"}}'
        )


def check_names(names: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Refuse a name that is not among `known`; suggest the nearest one if any is similar.

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
    """Turn errors of vLLM that are not written for users into a ValueError of one line.

    These are pydantic's, four lines that name vLLM's classes, and the memory allocator's.

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
