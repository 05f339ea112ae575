"""Shows source code in a notebook, and the device that the lessons run on."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import linecache
import os
import re
import textwrap
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from ..settings.environment import prepare_environment

# A lesson's first cell imports this module, and vLLM reads its variables when it is imported.
prepare_environment()

NEURON_DISTRIBUTIONS = ("torch-neuronx", "neuronx-cc", "nki", "vllm")
CORE_COUNT = "sys/devices/virtual/neuron_device/{device}/core_count"


class Source:
    """Source code, as text for a terminal and as Markdown for a page.

    Markdown, because a page then colours it as its theme wants, and never takes it for HTML.
    """

    def __init__(self, parts: list[tuple[str, str]], *, folded: bool) -> None:
        self._parts, self._folded = parts, folded

    def __repr__(self) -> str:
        """Return the titles only: beside the Markdown, a page would store the code twice."""
        return "\n".join(title for title, _ in self._parts)

    def __str__(self) -> str:
        return "\n\n".join(f"# {title}\n{code}" for title, code in self._parts)

    def _repr_markdown_(self) -> str:
        return "\n\n".join(self._to_markdown(title, code) for title, code in self._parts)

    def _to_markdown(self, title: str, code: str) -> str:
        # Longer than any run of backticks in the code, so that nothing in it ends the block.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
        block = f"{fence}python\n{code}\n{fence}"
        title = escape(title)
        if self._folded:
            return f"<details>\n<summary>{title}</summary>\n\n{block}\n\n</details>"
        return f"**{title}**\n\n{block}"


def show_source(*objects: Any, folded: bool = True) -> Source:
    """Show the source of classes or functions one below the other: yours, then the packaged one.

    Args:
        objects: what to show, in order.
        folded: whether each part is opened by a click.

    Raises:
        ValueError: there is no source, for example of a built-in function.
    """
    return Source([(_get_title(o), get_source(o)) for o in objects], folded=folded)


def get_source(obj: Callable[..., Any] | type) -> str:
    """Return the source of a class, function, method or property, also of one made in a cell.

    Raises:
        ValueError: there is none.
    """
    obj = getattr(obj, "fget", None) or inspect.unwrap(obj)
    try:
        return textwrap.dedent(inspect.getsource(obj)).rstrip()
    except (OSError, TypeError):
        source = _find_class_in_cell(obj) if isinstance(obj, type) else None
    if source is None:
        raise ValueError(f"{obj!r}: its source is not to be found; give a class or function")
    return source


def _find_class_in_cell(cls: type) -> str | None:
    """Return the source of a class that a notebook cell defines; inspect looks for a file."""
    for member in vars(cls).values():
        code = getattr(getattr(member, "fget", None) or member, "__code__", None)
        if code is None:
            continue
        lines = linecache.getlines(code.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
    return None


def _get_title(obj: Any) -> str:
    obj = getattr(obj, "fget", None) or obj
    module = getattr(obj, "__module__", "__main__")
    name = getattr(obj, "__qualname__", repr(obj))
    return f"{name}, yours" if module == "__main__" else f"{name}, in {module}"


class DeviceReport:
    """The device found and what a learner should know of it."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __repr__(self) -> str:
        return "\n".join(self._lines)


def device_report(root: str | Path = "/") -> DeviceReport:
    """Say which device a Lab with `device="auto"` runs on, and who else holds it.

    The text is the same on every machine without a Neuron device. What is here for Neuron was
    written from the driver's documentation and has not been run on hardware.

    Args:
        root: where `dev`, `proc` and `sys` are.
    """
    root = Path(root)
    devices = sorted(
        (path.name for path in root.glob("dev/neuron*") if path.name[6:].isdigit()),
        key=lambda name: int(name[6:]),
    )
    if not devices:
        return DeviceReport(
            [
                "device: CPU (no NeuronCore on this machine)",
                "Decisions, shapes and tokens do not depend on the device; times do.",
            ]
        )
    cores = [_read_text(root / CORE_COUNT.format(device=device)) for device in devices]
    num_cores = sum(map(int, cores)) if all(core.isdigit() for core in cores) else "?"
    from ..runner.device import find_neuron

    why_not = find_neuron()
    lines = [
        f"device: Neuron ({len(devices)} devices, {num_cores} NeuronCores)"
        if why_not is None
        else f"device: CPU, in spite of {len(devices)} Neuron devices: {why_not}",
        "software: " + ", ".join(map(_get_version, NEURON_DISTRIBUTIONS)),
    ]
    if holders := _find_holders(root, devices):
        lines += [f"in use: {'; '.join(holders)}"]
        lines += ["To free it: in JupyterLab shut the other notebook's kernel down, or kill PID."]
    else:
        lines += ["in use: by no process that you may look into"]
    return DeviceReport(lines)


def _get_version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} not installed"


def _find_holders(root: Path, devices: list[str]) -> list[str]:
    """Return the processes that have a device open: `PID 12 (python -m ...) has neuron0`."""
    targets = {f"/dev/{device}" for device in devices}
    holders = []
    pids = [p for p in root.glob("proc/[0-9]*") if p.name.isdigit()]
    for process in sorted(pids, key=lambda p: int(p.name)):
        try:
            opened = {str(fd.readlink()) for fd in (process / "fd").iterdir()}
        except OSError:  # another user's process, or one that has just ended
            continue
        if held := sorted(targets & opened):
            command = _read_text(process / "cmdline").replace("\0", " ").strip()[:60]
            who = "this notebook" if int(process.name) == os.getpid() else command
            names = " ".join(name.removeprefix("/dev/") for name in held)
            holders.append(f"PID {process.name} ({who}) has {names}")
    return holders


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
