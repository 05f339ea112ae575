"""Attention in NumPy as a kernel of the runner: text through a function that a learner wrote.

    kernels = replace(REFERENCE, segmented_attention=as_kernel(attend, segment=64))

`attend` sees one head, plain arrays and no block table: this module does what lesson 07 taught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..runner.inputs import compute_slots
from .checks.attention import MASKED


def as_kernel(
    attend: Callable[..., Any], merge: Callable[..., Any], segment: int
) -> Callable[..., torch.Tensor]:
    """Return a function that takes and returns what `Kernels.segmented_attention` does.

    Args:
        attend: called for each query head as attend(q, k, v, mask, segment, merge) with
            q [tokens, head_dim], scaled, and k, v [prior_tokens + tokens, head_dim]: the keys of
            earlier chunks out of the cache, those of the chunk itself behind them. The mask is
            0, or MASKED where a token is later than the query's.
        merge: handed on.
        segment: handed on, instead of the runner's own.
    """

    def segmented_attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        prior_tokens: torch.Tensor,
        num_tokens: torch.Tensor,
        _kv_segment_size: int,
        scale: float,
    ) -> torch.Tensor:
        before, rows = int(prior_tokens), int(num_tokens)
        positions = np.arange(before)
        block_size = k_cache.shape[2]
        slots = compute_slots(block_table.numpy()[positions // block_size], positions, block_size)

        def read(cache: torch.Tensor, own: torch.Tensor, head: int) -> Any:
            prior = cache[:, head].reshape(-1, q.shape[2])[slots]  # one row a slot
            return torch.cat([prior, own[:rows, head]]).numpy()

        is_later = np.arange(before + rows) > before + np.arange(rows)[:, None]
        mask = np.where(is_later, MASKED, 0.0)
        out = torch.zeros_like(q)
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // k.shape[1])
            keys, values = read(k_cache, k, kv_head), read(v_cache, v, kv_head)
            queries = (q[:rows, head] * scale).numpy()
            result = attend(queries, keys, values, mask, segment, merge)
            out[:rows, head] = torch.from_numpy(np.asarray(result))
        return out

    return segmented_attention
