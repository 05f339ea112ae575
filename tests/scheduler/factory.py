"""Builds vLLM's own scheduler and request objects with no engine and no model, in milliseconds."""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, LoRAConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar


def make_scheduler(
    cls: type[Scheduler],
    *,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 128,
    max_model_len: int = 256,
    num_blocks: int = 65,
    block_size: int = 16,
    policy: str = "fcfs",
    prefix_caching: bool = False,
    neuron_config: dict[str, Any] | None = None,
    async_scheduling: bool = False,
    watermark: float = 0.0,
    reserve_full_isl: bool = True,
    v2_output_form: bool = False,
    sliding_window: int | None = None,
    max_loras: int | None = None,
    **scheduler_config: Any,
) -> Scheduler:
    """A `cls` over `num_blocks` KV blocks (block 0 is vLLM's null block, so one less to use).

    `v2_output_form` asks for the output form of vLLM's model runner V2 (resumed requests arrive
    as new ones). `sliding_window` adds layers that keep only so many tokens, in blocks of
    their own. `max_loras` switches LoRA on. Other keywords go to SchedulerConfig.
    """
    config = VllmConfig()
    config.scheduler_config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        is_encoder_decoder=False,
        policy=policy,
        watermark=watermark,
        scheduler_reserve_full_isl=reserve_full_isl,
        **scheduler_config,
    )
    config.scheduler_config.async_scheduling = async_scheduling
    config.cache_config = CacheConfig(block_size=block_size, enable_prefix_caching=prefix_caching)
    config.cache_config.num_gpu_blocks = num_blocks
    # A ModelConfig needs a model folder; a scheduler reads only these fields of it.
    config.model_config = SimpleNamespace(
        enable_return_routed_experts=False,
        is_diffusion=False,
        is_encoder_decoder=False,
        is_multimodal_model=False,
        max_model_len=max_model_len,
        model="stub",
        multimodal_config=None,
        return_sampling_mask=False,
        runner_type="generate",
        skip_tokenizer_init=True,
        supports_multimodal_inputs=False,
        uses_mrope=False,
        uses_xdrope=False,
    )
    if max_loras is not None:
        config.lora_config = LoRAConfig(max_loras=max_loras)
    if neuron_config is not None:
        config.additional_config = {"neuron_config": neuron_config}
    register_all_kvcache_specs(config)
    layout = {
        "block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32,
    }  # fmt: skip
    groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**layout))]
    if sliding_window is not None:
        window = SlidingWindowSpec(**layout, sliding_window=sliding_window)
        groups.append(KVCacheGroupSpec(["window layer"], window))
    scheduler = cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=block_size,
        log_stats=False,
    )
    scheduler.use_v2_model_runner = v2_output_form
    return scheduler


@cache
def _block_hasher(block_size: int) -> Callable[[Request], list]:
    init_none_hash(sha256)
    return get_request_block_hasher(block_size, sha256)


def make_request(
    request_id: str,
    prompt: int | list[int],
    max_tokens: int = 8,
    *,
    block_size: int = 16,
    priority: int = 0,
    arrival_time: float = 0.0,
    stop_token_ids: list[int] | None = None,
    grammar: bool = False,
    resumable: bool = False,
    adapter: int | None = None,
) -> Request:
    """A greedy request. `prompt`: token ids, or a length (ids then depend on the request id).

    `grammar=True`: a structured-output request, blocked until grant_grammar() is called on it.
    `adapter`: the number of its LoRA adapter, which nobody loads.
    """
    if isinstance(prompt, int):
        seed = sum(map(ord, request_id)) * 31
        prompt = [(seed + 7 * i + i * i // 5) % 251 for i in range(prompt)]
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            stop_token_ids=stop_token_ids,
            structured_outputs=StructuredOutputsParams(regex=".*") if grammar else None,
        ),
        pooling_params=None,
        arrival_time=arrival_time,
        priority=priority,
        block_hasher=_block_hasher(block_size),
        resumable=resumable,
        lora_request=adapter and LoRARequest(f"adapter {adapter}", adapter, "no path"),
    )


class AnyTokenGrammar(StructuredOutputGrammar):
    """A compiled grammar that accepts everything: only the wait for it matters here."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, num_tokens: int) -> None: ...

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None: ...

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None: ...


def grant_grammar(request: Request, error: bool = False) -> None:
    """Let the grammar of a `grammar=True` request be compiled now, or fail to compile."""
    assert request.structured_output_request is not None
    grammar = ValueError("no such grammar") if error else AnyTokenGrammar()
    request.structured_output_request.grammar = grammar
