"""The paged KV cache: its size, its layout, and its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import psutil
import torch
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

    from .llama_config import LlamaConfig

LAYOUT = "LBHNC"
"""vLLM's name for what the kernels read: layer, block, KV head, token in the block, channel."""

NUM_NULL_BLOCKS = 1


class KVCache(NamedTuple):
    """The cache of one layer.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim].
        v: like k.
    """

    k: torch.Tensor
    v: torch.Tensor


def layer_name(layer: int) -> str:
    """Return vLLM's name for a layer's attention."""
    return f"model.layers.{layer}.self_attn.attn"


def get_kv_cache_spec(
    config: LlamaConfig, block_size: int, dtype: torch.dtype
) -> dict[str, KVCacheSpec]:
    """Describe the cache to vLLM, which decides the number of blocks."""
    spec = FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        dtype=dtype,
    )
    return {layer_name(layer): spec for layer in range(config.num_hidden_layers)}


def allocate_kv_caches(
    spec: FullAttentionSpec, num_layers: int, num_blocks: int, device: torch.device
) -> list[KVCache]:
    """Allocate the cache of every layer, zeroed."""
    shape = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size)

    def zeros() -> torch.Tensor:
        return torch.zeros(shape, dtype=spec.dtype, device=device)

    return [KVCache(zeros(), zeros()) for _ in range(num_layers)]


def get_kv_cache_memory(vllm_config: VllmConfig, spec: dict[str, KVCacheSpec]) -> int:
    """Return the bytes that vLLM may spend on the cache.

    That is `kv_cache_memory_bytes` where it is set. Else it is what the scheduler's bound asks
    for, `max_num_seqs` requests of `max_model_len` and the null block: more could not be used,
    and a share of the machine's memory, vLLM's rule, would starve a laptop.

    Raises:
        ValueError: the machine has less memory free.
    """
    cache_config = vllm_config.cache_config
    if cache_config.kv_cache_memory_bytes is not None:
        return int(cache_config.kv_cache_memory_bytes)
    max_num_seqs = vllm_config.scheduler_config.max_num_seqs
    max_model_len = vllm_config.model_config.max_model_len
    num_blocks = max_num_seqs * cdiv(max_model_len, cache_config.block_size) + NUM_NULL_BLOCKS
    bytes_per_block = sum(layer.page_size_bytes for layer in spec.values())
    needed = num_blocks * bytes_per_block
    allocated = (cache_config.num_gpu_blocks_override or num_blocks) * bytes_per_block
    free = psutil.virtual_memory().available
    if allocated > free:
        raise ValueError(
            f"kv_cache_memory_bytes: not set, and max_num_seqs = {max_num_seqs} requests of "
            f"max_model_len = {max_model_len} tokens need {allocated:,} bytes of {free:,} free; "
            f"lower one of the two, or set kv_cache_memory_bytes"
        )
    return needed
