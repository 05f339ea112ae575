"""NeuronWorker: the model runner behind vLLM's worker interface.

Its place in a plain vLLM engine:

    LLM(model, worker_cls="neuron_sched_lab.runner.NeuronWorker",
        scheduler_cls="neuron_sched_lab.NeuronScheduler",
        additional_config={"neuron_config": {...}, "runner_config": {...}})

Settings of an engine that it does not support are refused at start. Parameters of a request, such
as prompt_logprobs, are refused in vLLM's front end before the request is queued (see limits.py).
Where the front end runs in the worker's process, that needs nothing. Elsewhere, which is vLLM's
default, the front end must be told, or such a parameter is ignored:

    vllm serve MODEL --worker-cls neuron_sched_lab.runner.NeuronWorker
        --scheduler-cls neuron_sched_lab.NeuronScheduler
        --logits-processors neuron_sched_lab.runner.limits:RequestLimits

or `LLM(logits_processors=["neuron_sched_lab.runner.limits:RequestLimits"], ...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from ..scheduler.config import NeuronConfig
from .config import RunnerConfig
from .device import resolve_device
from .kv_cache import LAYOUT, get_kv_cache_memory
from .limits import REQUEST_LIMITS, check_engine
from .model_runner import NeuronModelRunner

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

    from .lora.adapter_cache import AdapterCache

logger = init_logger(f"vllm.{__name__}")  # below "vllm", whose handler and level it shares


class NeuronWorker(WorkerBase):
    """A vLLM worker that runs one compiled graph for each bucket.

    Raises:
        ValueError: a setting of the engine is not supported; it is named.

    Attributes:
        model_runner: graphs, caches, counters.
    """

    model_runner: NeuronModelRunner

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        check_engine(vllm_config)
        NeuronConfig.from_vllm_config(vllm_config)
        self.runner_config = RunnerConfig.from_vllm_config(vllm_config)
        if self.runner_config.async_scheduling:
            self._enable_async_scheduling()
        processors = self.model_config.logits_processors or []
        self.model_config.logits_processors = [*processors, REQUEST_LIMITS]

    def _enable_async_scheduling(self) -> None:
        """Switch the engine to scheduling ahead; it reads the switch after making its workers.

        vLLM's own switch does not reach us: its CPU platform sets it back to False.
        """
        scheduler_cls = self.scheduler_config.get_scheduler_cls()
        if not issubclass(scheduler_cls, AsyncScheduler):
            raise ValueError(
                f"async_scheduling: True needs a subclass of vLLM's AsyncScheduler, found "
                f"{scheduler_cls.__name__}; set "
                f'scheduler_cls="neuron_sched_lab.NeuronAsyncScheduler"'
            )
        self.scheduler_config.async_scheduling = True

    # Start, in the order in which the engine calls.

    def init_device(self) -> None:
        """Find the device and make the runner."""
        device = resolve_device(
            self.runner_config.device, compile_on_cpu=self.runner_config.compile
        )
        self.device = torch.device(device.torch_device)
        set_random_seed(self.model_config.seed)
        self.model_runner = NeuronModelRunner(
            self.vllm_config, device, async_scheduling=self.runner_config.async_scheduling
        )

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load the checkpoint."""
        if load_dummy_weights:
            raise ValueError(
                "load_dummy_weights: True is not supported by NeuronWorker; give a checkpoint"
            )
        self.model_runner.load_model()

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Describe the KV cache."""
        return self.model_runner.get_kv_cache_spec()

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Name the one layout that the kernels read."""
        return [LAYOUT]

    def determine_available_memory(self) -> int:
        """Return the bytes that the KV cache may take."""
        return get_kv_cache_memory(self.vllm_config, self.get_kv_cache_spec())

    def update_max_model_len(self, max_model_len: int) -> None:
        """Take over a length that vLLM cut down to what the KV cache holds."""
        self.model_config.max_model_len = max_model_len

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache."""
        self.model_runner.initialize_kv_cache(kv_cache_config)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Make every graph of the ladders."""
        seconds = self.model_runner.warm_up()
        logger.info("%d graphs in %.2f s", len(self.model_runner.graphs), seconds)
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=seconds, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Name what requests may ask for."""
        return ("generate",)

    # Each step.

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run the forward pass; None means that `sample_tokens` comes next."""
        return self.model_runner.execute_model(scheduler_output)

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Pick the tokens of the step that was executed last."""
        return self.model_runner.sample_tokens(grammar_output)

    # LoRA adapters, by their number.

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter, unless it is known.

        Raises:
            ValueError: the engine has no LoRA, or the adapter's directory has a fault.
        """
        self._adapters.add(lora_request)
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; tell whether it was known."""
        return self._adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        """Name the adapters on the host."""
        return self._adapters.ids

    def pin_lora(self, lora_id: int) -> bool:
        """Refuse: a slot that is never freed could leave an admitted request without one."""
        raise NotImplementedError(
            f"pin_lora: {lora_id} cannot be pinned by NeuronWorker; the scheduler counts on every "
            f"one of the max_loras slots; raise max_loras instead"
        )

    @property
    def _adapters(self) -> AdapterCache:
        if self.model_runner.adapters is None:
            raise ValueError("enable_lora: False; this engine serves no adapters; set it to True")
        return self.model_runner.adapters

    # What WorkerBase leaves out and some methods of LLM call.

    def get_model(self) -> torch.nn.Module:
        """Return the Llama."""
        return self.model_runner.model

    def synchronize_device(self) -> None:
        """Wait for the device."""
        self.model_runner.device.synchronize()

    def reset_encoder_cache(self) -> None:
        """Nothing to do: there is no encoder."""

    def execute_dummy_batch(self) -> None:
        """Nothing to do: vLLM asks for it to keep data-parallel ranks of a MoE in step."""

    def take_draft_token_ids(self) -> None:
        """Return None: nothing is drafted."""

    def profile(self, is_start: bool = True, profile_prefix: str | None = None) -> Any:
        """Refuse: there is no profiler here."""
        raise NotImplementedError(
            "profile: NeuronWorker has no profiler; see model_runner.graphs.log and num_calls"
        )

    def shutdown(self) -> None:
        """Let go of the caches and graphs."""
        self.model_runner.release()
