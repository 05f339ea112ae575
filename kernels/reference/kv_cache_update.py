"""Reference of kv_cache_update: write new keys and values into the paged cache."""

from __future__ import annotations

import numpy as np
import torch

from .memo import remember_last


def kv_cache_update(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write k and v into their slots, in place; see `dispatch.Kernels` for the arguments."""
    tokens, rows = _locate(slot_mapping, k_cache.shape[1], k_cache.shape[2])
    head_dim = k_cache.shape[-1]
    for new, cache in ((k, k_cache), (v, v_cache)):
        real = new if len(tokens) == len(new) else new.index_select(0, tokens)
        real_rows = real.reshape(-1, head_dim).to(cache.dtype)
        cache.view(-1, head_dim).index_copy_(0, rows, real_rows)


@remember_last
def _locate(
    slot_mapping: torch.Tensor, num_kv_heads: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that have a slot, and where each of their KV heads goes.

    Both are int64: [n], and [n * num_kv_heads] rows of the cache seen as [rows, head_dim].
    """
    (tokens,) = np.nonzero(slot_mapping.numpy() >= 0)
    slots = slot_mapping.numpy()[tokens].astype(np.int64)[:, None]
    heads = slots // block_size * num_kv_heads + np.arange(num_kv_heads)
    rows = heads * block_size + slots % block_size
    return torch.from_numpy(tokens), torch.from_numpy(rows.ravel())
