"""Types and ranges of single settings, checked before a trace is read or a sweep begins.

What several settings must fulfil together is for `simulate` and NeuronConfig to check. The upper
limits are far beyond any machine: vLLM and the search for ladders make tables of that size, so a
slip of some zeros would take minutes and all memory before anything is said.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """Smallest and largest int that a setting takes."""

    least: int
    most: int


INTS = {
    "max_num_seqs": Range(1, 2**16),
    "max_num_batched_tokens": Range(1, 2**20),
    "max_model_len": Range(1, 2**24),
    "block_size": Range(1, 2**16),
    # vLLM keeps one, the null block.
    "num_kv_blocks": Range(2, 2**40),
    "max_steps": Range(1, 2**40),
}
OPTIONAL = {"num_kv_blocks", "max_steps"}
BOOLS = {"enable_prefix_caching", "fast_forward", "async_scheduling"}


def check_setting(name: str, value: object) -> None:
    """Check one setting by itself; a name that is not in the tables above passes.

    Raises:
        ValueError: names the setting, the value and the rule.
    """
    if name in INTS and not (value is None and name in OPTIONAL):
        check_int(name, value, INTS[name])
    if name in BOOLS and not isinstance(value, bool):
        raise ValueError(f"{name}: {value!r} must be true or false; give one of the two")


def check_int(name: str, value: object, limits: Range) -> None:
    """Check an int against its limits.

    Raises:
        ValueError: names the setting, the value and the rule.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: {value!r} must be an int of at least {limits.least}; give one")
    if value < limits.least:
        raise ValueError(f"{name}: {value} must be at least {limits.least}; raise it")
    if value > limits.most:
        raise ValueError(f"{name}: {value} is more than {limits.most}; lower it")
