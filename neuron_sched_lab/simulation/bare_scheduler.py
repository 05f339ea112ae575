"""Makes a vLLM scheduler and requests for it in milliseconds: no engine, worker or model.

The scheduler, its queues and the KV-cache manager are vLLM's own objects; only the model's
configuration is a stand-in with the fields that a scheduler reads. Simulations run on it, and so
can tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..settings.environment import prepare_environment

prepare_environment()

import torch  # noqa: E402
from vllm.config import CacheConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.utils.math_utils import cdiv  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

from ..scheduler.admission import NUM_NULL_BLOCKS  # noqa: E402
from ..settings.arguments import (  # noqa: E402
    check_bools,
    check_ints,
    check_limits,
    check_neuron_config,
    check_scheduler,
    vllm_errors,
)

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

MAX_KV_BLOCKS = 2**22
"""vLLM makes a Python object of each: this many take seconds, a thousand times as many would fill
the memory."""


def make_scheduler(
    cls: type[Scheduler],
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    num_blocks: int | None = None,
    block_size: int,
    policy: str = "fcfs",
    enable_prefix_caching: bool = False,
    neuron_config: Mapping[str, Any] | None = None,
    async_scheduling: bool = False,
    **scheduler_config: Any,
) -> Scheduler:
    """Return a scheduler of class `cls`; its KV cache is only counted, there are no tensors.

    Args:
        cls: a vLLM scheduler class.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step.
        max_model_len: longest sequence, in tokens.
        num_blocks: KV blocks, vLLM's null block included: one less can be used; by default enough
            for `max_num_seqs` requests of `max_model_len`.
        block_size: tokens in a KV block.
        policy: "fcfs" or "priority".
        enable_prefix_caching: whether requests share the KV blocks of a common prefix.
        neuron_config: settings of the Neuron schedulers, see NeuronConfig.
        async_scheduling: what an engine with asynchronous scheduling tells its scheduler.
        scheduler_config: other fields of vLLM's SchedulerConfig.

    Raises:
        ValueError: a setting is wrong; it is named.
    """
    check_scheduler(cls)
    check_limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=block_size,
    )
    if num_blocks is None:
        num_blocks = max_num_seqs * cdiv(max_model_len, block_size) + NUM_NULL_BLOCKS
    _check_num_blocks(num_blocks)
    check_bools(enable_prefix_caching=enable_prefix_caching, async_scheduling=async_scheduling)
    check_neuron_config(neuron_config)
    config = VllmConfig()
    with vllm_errors():
        config.scheduler_config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            policy=policy,
            **scheduler_config,
        )
    config.scheduler_config.async_scheduling = async_scheduling
    config.cache_config = CacheConfig(
        block_size=block_size, enable_prefix_caching=enable_prefix_caching
    )
    config.cache_config.num_gpu_blocks = num_blocks
    config.model_config = _model_config(max_model_len)
    if neuron_config is not None:
        config.additional_config = {"neuron_config": dict(neuron_config)}
    register_all_kvcache_specs(config)
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=block_size,
        log_stats=False,
    )


def _check_num_blocks(num_blocks: int) -> None:
    check_ints(num_kv_blocks=num_blocks)
    if num_blocks > MAX_KV_BLOCKS:
        raise ValueError(
            f"num_kv_blocks: {num_blocks} must be at most {MAX_KV_BLOCKS}; lower num_kv_blocks, or "
            f"max_num_seqs or max_model_len where it follows from them"
        )


def _model_config(max_model_len: int) -> SimpleNamespace:
    """Return what a scheduler reads of a ModelConfig, which itself needs a model directory."""
    return SimpleNamespace(
        enable_return_routed_experts=False,
        is_diffusion=False,
        is_encoder_decoder=False,
        is_multimodal_model=False,
        max_model_len=max_model_len,
        model="none",
        multimodal_config=None,
        return_sampling_mask=False,
        runner_type="generate",
        skip_tokenizer_init=True,
        supports_multimodal_inputs=False,
        uses_mrope=False,
        uses_xdrope=False,
    )


def make_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    *,
    hash_block_size: int | None = None,
    arrival_time: float = 0.0,
    priority: int = 0,
) -> Request:
    """Return a greedy request that generates `max_tokens` tokens; no token ends it earlier.

    Args:
        request_id: its id.
        prompt_token_ids: its prompt; any numbers, no model looks at them.
        max_tokens: tokens to generate.
        hash_block_size: the KV block size where prefix caching needs the prompt's hashes.
        arrival_time: for the priority policy, which breaks ties by it.
        priority: for the priority policy; lower is sooner.
    """
    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt_token_ids),
        sampling_params=_sampling_params(max_tokens),
        pooling_params=None,
        arrival_time=arrival_time,
        priority=priority,
        block_hasher=None if hash_block_size is None else _block_hasher(hash_block_size),
    )


@cache
def _sampling_params(max_tokens: int) -> SamplingParams:
    # Schedulers only read them, so requests of one length share them: making them takes longer
    # than making the request.
    return SamplingParams(max_tokens=max_tokens, temperature=0)


@cache
def _block_hasher(block_size: int) -> Callable[[Request], list[Any]]:
    init_none_hash(sha256)
    return get_request_block_hasher(block_size, sha256)
