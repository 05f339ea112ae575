"""What people import stands in `neuron_sched_lab` itself, and is loaded when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import neuron_sched_lab
from neuron_sched_lab import runner, simulation, widgets

SCRIPT = """
import sys, neuron_sched_lab
assert "vllm" not in sys.modules, "importing the package loads vLLM"
from neuron_sched_lab import Trace, Workload, SLO
assert "vllm" not in sys.modules, "a recorded trace or a workload loads vLLM"
"""


@pytest.mark.parametrize("name", neuron_sched_lab.__all__)
def test_every_public_name_is_there_and_has_a_docstring(name):
    thing = getattr(neuron_sched_lab, name)
    assert thing.__name__ == name
    assert thing.__module__.startswith("neuron_sched_lab.")
    assert thing.__doc__


def test_the_list_and_the_homes_are_the_same_names():
    assert sorted(neuron_sched_lab.__all__) == sorted(neuron_sched_lab._HOMES)
    assert set(neuron_sched_lab.__all__) <= set(dir(neuron_sched_lab))


@pytest.mark.parametrize("room", [runner, simulation, widgets])
def test_a_room_exports_what_its_list_says(room):
    assert sorted(room.__all__) == sorted(room._HOMES)
    for name in room.__all__:
        assert getattr(room, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        room.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["Simulate", "lab", "kernels_of", "_private"])
def test_any_other_name_is_refused_as_python_does(name):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(neuron_sched_lab, name)


def test_vllm_is_loaded_only_for_what_needs_it():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
