"""From the arguments of `interface.Kernels` to those of the NKI kernels: checks and small tensors.

Pure torch, so that it can stand in a compiled graph. The checks look at shapes and formats alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

MAX_PARTITIONS = 128
DECODE_SEGMENT = 2048
"""Tokens of context that decode reads at a time: 16 for each partition, see paged_kv.py."""

MAX_SEGMENT = 4096
"""Keys, values, scores and weights of a larger segment do not fit SBUF beside 64 query tiles."""

DTYPES = (torch.float32, torch.bfloat16)


def check_cache(q: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Check what both attention kernels and the cache update need.

    Raises:
        ValueError: names the setting, the value found, the rule and the fix.
    """
    head_dim, block_size = q.shape[-1], k_cache.shape[2]
    if head_dim > MAX_PARTITIONS:
        raise ValueError(
            f"head_dim: {head_dim} must be at most {MAX_PARTITIONS}, the partitions of a "
            f"NeuronCore; use a checkpoint with smaller heads, or device='cpu'"
        )
    if block_size & (block_size - 1):
        raise ValueError(
            f"block_size: {block_size} must be a power of two for the NKI kernels; "
            f"use {1 << (block_size - 1).bit_length()}"
        )
    if q.dtype not in DTYPES or k_cache.dtype != q.dtype:
        raise ValueError(
            f"dtype: the NKI kernels take float32 or bfloat16, the cache alike; found {q.dtype} "
            f"and a cache of {k_cache.dtype}"
        )


def prefill_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    prior_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    kv_segment_size: int,
    scale: float,
) -> tuple[Any, ...]:
    """Arguments of segmented_attention_kernel.

    The block table is filled up with -1 to whole segments; what the kernel would have to
    compute from prior_tokens for each segment is computed here.

    Raises:
        ValueError: a shape or format that the kernel does not take.
    """
    check_cache(q, k_cache)
    block_size = k_cache.shape[2]
    if kv_segment_size % block_size:
        raise ValueError(
            f"kv_segment_size: {kv_segment_size} must be a multiple of block_size = {block_size}; "
            f"use {-(-kv_segment_size // block_size) * block_size}"
        )
    # No longer than the block table: what is behind it would be masked anyway.
    kv_segment_size = min(kv_segment_size, len(block_table) * block_size)
    if kv_segment_size > MAX_SEGMENT:
        raise ValueError(
            f"kv_segment_size: {kv_segment_size} must be at most {MAX_SEGMENT}, which is what fits "
            f"SBUF; use {MAX_SEGMENT}"
        )
    blocks_per_segment = kv_segment_size // block_size
    max_segments = -(-block_table.shape[0] // blocks_per_segment)
    missing = max_segments * blocks_per_segment - len(block_table)
    table = functional.pad(block_table, (0, missing), value=-1)
    starts = torch.arange(
        0, max_segments * kv_segment_size, kv_segment_size, dtype=torch.int32, device=table.device
    )
    num_segments = (prior_tokens + (kv_segment_size - 1)) // kv_segment_size
    return (
        q, k, v, k_cache, v_cache, table, prior_tokens - starts, num_segments, num_tokens,
        kv_segment_size, scale,
    )


def decode_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    segment: int = DECODE_SEGMENT,
) -> tuple[Any, ...]:
    """Arguments of paged_decode_attention_kernel; segment: tokens of context at a time.

    Raises:
        ValueError: a shape or format that the kernel does not take.
    """
    check_cache(q, k_cache)
    num_heads, block_size = q.shape[1], k_cache.shape[2]
    if num_heads > MAX_PARTITIONS:
        raise ValueError(
            f"num_attention_heads: {num_heads} must be at most {MAX_PARTITIONS} on one core; "
            f"use a smaller checkpoint"
        )
    segment = max(segment, block_size)
    return q, k, v, k_cache, v_cache, block_tables, context_lens, segment, scale


def update_arguments(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> tuple[Any, ...]:
    """Arguments of kv_cache_update_kernel.

    Raises:
        ValueError: a shape or format that the kernel does not take.
    """
    check_cache(k, k_cache)
    return k, v, k_cache, v_cache, slot_mapping
