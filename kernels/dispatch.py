"""The one table that says which kernels a device runs, and what each kernel promises.

A kernel knows tensors only: nothing of requests, schedulers or models. Every kernel has a torch
reference in `reference/`; the NKI version of it keeps the same arguments.

Conventions:

- The paged caches `k_cache` and `v_cache` are [num_blocks, num_kv_heads, block_size, head_dim],
  one pair per layer. The slot of a token is `block * block_size + offset`.
- Integer tensors are int32, because NKI has no 64-bit type.
- `k` and `v` of the active tokens are always given, so that it does not matter whether the cache
  was updated before or after attention.
- Padding: a row of padding gives a finite result that nobody reads. Whatever an unused slot, an
  unused block or a row of padding holds, NaN included, changes no bit of a real row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from . import reference

if TYPE_CHECKING:
    from torch import Tensor


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Leave it to torch and its compilers."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def _leave_alone(weight: Tensor) -> Tensor:
    return weight


@dataclass(frozen=True)
class Kernels:
    """What the model calls.

    Attributes:
        segmented_attention: prefill of one request.

            segmented_attention(q, k, v, k_cache, v_cache, block_table, prior_tokens, num_tokens,
            kv_segment_size, scale) -> out

            q, out: [bucket, num_heads, head_dim]; k, v: [bucket, num_kv_heads, head_dim], the
            active chunk padded to its bucket. block_table: [max_blocks], -1 where unused.
            prior_tokens: [1], tokens of the request already in the cache, any number.
            num_tokens: [1], real rows of the chunk, at least 1. kv_segment_size: tokens of prior
            context read at a time, a multiple of block_size, compile-time constant. scale: of
            the scores, compile-time constant.
        paged_decode_attention: one decode step of a batch.

            paged_decode_attention(q, k, v, k_cache, v_cache, block_tables, context_lens, scale)
            -> out

            q, out: [batch, num_heads, head_dim]; k, v: [batch, num_kv_heads, head_dim].
            block_tables: [batch, max_blocks], -1 where unused. context_lens: [batch], tokens in
            the cache before the active one; 0 in a row of padding, which then sees itself only.
        kv_cache_update: write the active tokens into the caches, in place.

            kv_cache_update(k, v, k_cache, v_cache, slot_mapping) -> None

            k, v: [tokens, num_kv_heads, head_dim]. slot_mapping: [tokens]; -1 writes nothing.
        linear: linear(x [rows, in], weight) -> [rows, out]. weight: [out, in], or what `pack`
            made of it.
        pack: pack(weight [out, in]) -> the same weight in the layout that `linear` likes best,
            whatever that is.
        rms_norm: rms_norm(x [rows, size], weight [size], eps) -> [rows, size].
        rotary: turn every head of every token by the angles of its position.

            rotary(x, positions, cos_sin) -> out

            x: [tokens, heads * head_dim], each token contiguous. out: [tokens, heads, head_dim],
            which may be x, overwritten. positions: [tokens]. cos_sin: [max_positions, head_dim]
            in x's dtype, the cosines of all angles of a position, then the sines.
    """

    segmented_attention: Callable[..., Tensor]
    paged_decode_attention: Callable[..., Tensor]
    kv_cache_update: Callable[..., None]
    linear: Callable[[Tensor, Any], Tensor]
    pack: Callable[[Tensor], Any] = _leave_alone
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = _rms_norm
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor] = reference.rotary_in_torch


REFERENCE = Kernels(
    segmented_attention=reference.segmented_attention,
    paged_decode_attention=reference.paged_decode_attention,
    kv_cache_update=reference.kv_cache_update,
    linear=reference.linear,
    pack=reference.pack,
    rms_norm=reference.rms_norm,
    rotary=reference.rotary,
)

DEVICES = ("cpu", "nki-sim", "neuron")
"""Devices that have kernels."""


def get_kernels(device: str) -> Kernels:
    """Return the kernels of a device. What a device needs is imported when it is asked for.

    Raises:
        NotImplementedError: the device has none.
        ImportError: neuron, and torch-neuronx or nki is not installed.
    """
    if device == "cpu":
        return REFERENCE
    if device == "nki-sim":
        from .simulation import SIMULATED

        return SIMULATED
    if device == "neuron":
        from .registration import register

        return register()
    raise NotImplementedError(
        f"device: {device!r} has no kernels; kernels exist for {DEVICES}: choose one"
    )


@cache
def reference_as_graph_nodes() -> Kernels:
    """Return the references as torch operators, each one opaque node to torch.compile.

    A reference decides at run time how much it reads, which no static graph can express. An NKI
    kernel is such a node by itself. Everything else is left to the compiler, weights unpacked.
    """

    def register(kernel: Callable[..., Any], mutates: tuple[str, ...] = ()) -> Callable[..., Any]:
        name = f"neuron_sched_lab::{kernel.__name__}"
        operator = torch.library.custom_op(name, kernel, mutates_args=mutates)
        operator.register_fake(lambda q, *_: None if mutates else torch.empty_like(q))
        return operator

    return Kernels(
        segmented_attention=register(reference.segmented_attention),
        paged_decode_attention=register(reference.paged_decode_attention),
        kv_cache_update=register(reference.kv_cache_update, ("k_cache", "v_cache")),
        linear=functional.linear,
    )
