"""A pytest plugin for the process that runs vLLM's tests: puts a scheduler class under them.

It replaces vLLM's two scheduler classes before the test modules import them, stands in for what the
two multimodal models would load, and writes the outcome of each test to a file. vLLM's test package
is called `tests`, as ours is, so this file is imported by its bare name.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from vllm.config import ModelConfig, MultiModalConfig
from vllm.multimodal import MultiModalRegistry
from vllm.v1.core.encoder_cache_manager import compute_mm_encoder_budget
from vllm.v1.core.sched import async_scheduler, scheduler

MULTIMODAL_MODELS = ("llava", "Qwen2.5-VL")
TOKENS_PER_IMAGE = 576
"""LLaVA 1.5: 24 x 24 patches."""


class StandInBudget:
    """What the scheduler reads of MultiModalBudget, which would load the model's processor."""

    def __init__(self, vllm_config: Any, mm_registry: Any) -> None:
        self.mm_max_toks_per_item = {"image": TOKENS_PER_IMAGE}
        self.encoder_compute_budget, self.encoder_cache_size = compute_mm_encoder_budget(
            vllm_config.scheduler_config, self.mm_max_toks_per_item
        )


def is_multimodal(model_config: Any) -> bool:
    """Whether an OPT stands in for a multimodal model here."""
    return any(name in model_config.model for name in MULTIMODAL_MODELS)


def stand_in_for_multimodal_models() -> None:
    """Make vLLM take the OPTs of those names for multimodal models."""
    scheduler.MultiModalBudget = StandInBudget
    # vLLM 0.29 asks the registry, 0.32 the model's configuration.
    MultiModalRegistry.supports_multimodal_inputs = lambda _, config: is_multimodal(config)
    ModelConfig.supports_multimodal_inputs = property(is_multimodal)

    finish_init = ModelConfig.__post_init__

    @functools.wraps(finish_init)
    def with_multimodal_config(self: Any, *args: Any, **kwargs: Any) -> None:
        finish_init(self, *args, **kwargs)
        if is_multimodal(self):
            self.multimodal_config = MultiModalConfig()

    ModelConfig.__post_init__ = with_multimodal_config


class NoAsyncScheduler:
    """In place of AsyncScheduler when no class was given for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pytest.skip("needs an asynchronous scheduler class, none was given")


def load(path: str) -> type:
    """The class that `module.Class` names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


class Recorder:
    """Writes, at the end, for each test its outcome, its error and the schedulers it built."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.built: set[str] = set()
        self.tests: dict[str, dict[str, Any]] = {}

    def watch(self, cls: type) -> None:
        """Note each object that is made of `cls` or a subclass."""
        init = cls.__init__

        @functools.wraps(init)
        def noting(made: Any, *args: Any, **kwargs: Any) -> None:
            self.built.add(type(made).__name__)
            init(made, *args, **kwargs)

        cls.__init__ = noting

    def pytest_runtest_setup(self) -> None:
        self.built.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self.tests.setdefault(
            report.nodeid.removeprefix("tests/v1/"), {"outcome": "passed", "error": "", "built": []}
        )
        test["built"] = sorted(self.built)
        if not report.passed and test["outcome"] == "passed":
            test["outcome"], test["error"] = report.outcome, error_line(report)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.tests, indent=1), encoding="utf-8")


def error_line(report: Any) -> str:
    """`file:line: message` of a failure, the reason of a skip."""
    if report.skipped:
        return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().splitlines()[-1]
    lines = crash.message.splitlines() or [""]
    return f"{Path(crash.path).name}:{crash.lineno}: {lines[0]}"


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--scheduler-class", required=True)
    parser.addoption("--async-scheduler-class")
    parser.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: Any) -> None:
    recorder = Recorder(config.option.outcomes)
    recorder.watch(scheduler.Scheduler)
    config.pluginmanager.register(recorder, "recorder")

    # Both before either is replaced: ours are subclasses of vLLM's.
    sync_cls = load(config.option.scheduler_class)
    async_path = config.option.async_scheduler_class
    async_cls = load(async_path) if async_path else NoAsyncScheduler
    scheduler.Scheduler = sync_cls
    async_scheduler.AsyncScheduler = async_cls
    stand_in_for_multimodal_models()
    for marker in ("cpu_test", "skip_global_cleanup"):
        config.addinivalue_line("markers", f"{marker}: vLLM's own")


@pytest.fixture
def caplog_vllm(caplog: Any) -> Iterator[Any]:
    """vLLM's conftest.py, which is left out, has it: caplog, with vLLM's log let through."""
    logger = logging.getLogger("vllm")
    before, logger.propagate = logger.propagate, True
    yield caplog
    logger.propagate = before
