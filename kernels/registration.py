"""The kernels of device "neuron": NKI kernels as torch operators of torch-neuronx.

NOT RUN ON HARDWARE. Written from the documented interface of torch-neuronx 2.13 (Neuron SDK 2.33),
`nki_op(name, mutates_args=...)` and `wrap_nki(kernel)[grid](...)`, and tested against a stand-in
for it. Imported where device "neuron" is asked for, and nowhere else.
"""
# Not `from __future__ import annotations`: nki_op reads the hints, and wants types, not text.

import os
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from . import nki_kernels as kernels
from .interface import Kernels
from .nki_kernels.arguments import decode_arguments, prefill_arguments, update_arguments

DEFAULT_LOGICAL_NC_CONFIG = "2"
"""Physical cores in a logical core; the runtime's default on Trn2."""


def get_grid() -> int:
    """Return the grid that kernels must be launched with: NEURON_LOGICAL_NC_CONFIG.

    Raises:
        ValueError: the variable is neither 1 nor 2.
    """
    value = os.environ.get("NEURON_LOGICAL_NC_CONFIG", DEFAULT_LOGICAL_NC_CONFIG)
    if value not in {"1", "2"}:
        raise ValueError(
            f"NEURON_LOGICAL_NC_CONFIG: {value!r} must be 1 or 2 on Trn2; unset it for 2"
        )
    return int(value)


@cache
def register() -> Kernels:
    """Register the kernels with torch-neuronx, once, and return them for the dispatch table.

    Raises:
        ImportError: torch-neuronx or nki is not installed.
    """
    from torch_neuronx import nki_op, wrap_nki

    grid = get_grid()

    # The kernels see whole cache tensors, never slices: writes through a view are lost.
    # kv_cache_update_kernel returns the caches it writes, which aliases them in a compiled graph;
    # the operator returns None, as torch forbids an operator to return what it mutates.
    @nki_op("neuron_sched_lab::nki_kv_cache_update", mutates_args={"k_cache", "v_cache"})
    def update_op(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        wrap_nki(kernels.kv_cache_update_kernel)[grid](k, v, k_cache, v_cache, slot_mapping)

    @nki_op("neuron_sched_lab::nki_segmented_attention", mutates_args=set())
    def prefill_op(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        left_by_segment: torch.Tensor,
        num_segments: torch.Tensor,
        num_tokens: torch.Tensor,
        kv_segment_size: int,
        scale: float,
    ) -> torch.Tensor:
        return wrap_nki(kernels.segmented_attention_kernel)[grid](
            q, k, v, k_cache, v_cache, block_table, left_by_segment, num_segments, num_tokens,
            kv_segment_size, scale,
        )

    @nki_op("neuron_sched_lab::nki_paged_decode_attention", mutates_args=set())
    def decode_op(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        segment: int,
        scale: float,
    ) -> torch.Tensor:
        return wrap_nki(kernels.paged_decode_attention_kernel)[grid](
            q, k, v, k_cache, v_cache, block_tables, context_lens, segment, scale
        )

    def segmented_attention(*args: Any) -> torch.Tensor:
        return prefill_op(*prefill_arguments(*args))

    def paged_decode_attention(*args: Any) -> torch.Tensor:
        return decode_op(*decode_arguments(*args))

    def kv_cache_update(*args: Any) -> None:
        update_op(*update_arguments(*args))

    return Kernels(
        segmented_attention=segmented_attention,
        paged_decode_attention=paged_decode_attention,
        kv_cache_update=kv_cache_update,
        linear=functional.linear,
    )
