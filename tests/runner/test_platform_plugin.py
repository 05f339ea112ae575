"""The kit's vLLM platform: offered where there is no other, and an engine starts on it.

Each test runs Python anew, since a process has one platform. "No platform" is made by giving vLLM
the version of PyPI's build, which finds none on a Trn2 without AWS's plugin, nor here.
"""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

WITHOUT_BUILTIN = """
from importlib import metadata
find_version = metadata.version
metadata.version = lambda name: "0.29.0" if name == "vllm" else find_version(name)
"""
"""vLLM knows its build for the CPU by the "cpu" in its version; it asks during its own import."""

SHOW_PLATFORM = """
from vllm.platforms import current_platform
print(type(current_platform).__name__)
"""

RUN = """
from neuron_sched_lab import Lab, {scheduler}
with Lab({scheduler}, num_kv_blocks=32, max_model_len=128) as lab:
    lab.add("reverse: flow", max_tokens=8)
    lab.run()
    print(type(lab.scheduler).__name__, lab.trace[-1].finished)
"""


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_entry_point_names_it():
    found = entry_points(group="vllm.platform_plugins", name="neuron_sched_lab")
    assert [point.value for point in found] == ["neuron_sched_lab.runner.platform_plugin:register"]


def test_it_stands_back_where_vllm_knows_the_machine():
    done = run_python(SHOW_PLATFORM)
    assert done.stdout.split() == ["CpuPlatform"], done.stderr


def test_it_is_there_where_nobody_else_is():
    done = run_python(WITHOUT_BUILTIN + SHOW_PLATFORM)
    assert done.stdout.split() == ["HostPlatform"], done.stderr


def test_it_stands_back_beside_another_plugin():
    """As AWS's does; two that both answer are an error of vLLM's."""
    code = WITHOUT_BUILTIN + """
from neuron_sched_lab.runner import platform_plugin
from vllm import plugins
plugins.load_plugins_by_group = lambda group: {"neuron": lambda: "another.Platform"}
print(platform_plugin.register())
"""
    done = run_python(code)
    assert done.stdout.split() == ["None"], done.stderr


def test_an_engine_starts_on_it():
    done = run_python(WITHOUT_BUILTIN + RUN.format(scheduler="NeuronScheduler"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("NeuronScheduler")


@pytest.mark.parametrize(
    ("scheduler", "worker", "message"),
    [
        ("HoldbackScheduler", "", "worker: HoldbackScheduler needs vLLM's own worker"),
        ("NeuronScheduler", 'worker="vllm", ', 'worker: "vllm" cannot run here'),
    ],
)
def test_vllms_worker_is_refused_in_one_line(scheduler, worker, message):
    code = RUN.format(scheduler=scheduler).replace("num_kv", worker + "num_kv")
    done = run_python(WITHOUT_BUILTIN + code)
    assert done.returncode != 0
    assert message in done.stderr
