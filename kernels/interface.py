"""Kernels: what the model calls, and what each kernel promises.

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
from typing import TYPE_CHECKING, Any

from torch.nn import functional

from .reference.rotary import rotary_in_torch

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
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor] = rotary_in_torch
