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
    """Write k and v into their slots, in place; see `interface.Kernels` for the arguments."""
    real, rows = _locate(slot_mapping, k_cache.shape[1], k_cache.shape[2])
    head_dim = k_cache.shape[-1]
    for new, cache in ((k, k_cache), (v, v_cache)):
        new_rows = new[real].reshape(-1, head_dim).to(cache.dtype)
        cache.view(-1, head_dim).index_copy_(0, rows, new_rows)


@remember_last
def _locate(
    slot_mapping: torch.Tensor, num_kv_heads: int, block_size: int
) -> tuple[slice | torch.Tensor, torch.Tensor]:
    """Return which tokens have a slot, and where each of their KV heads goes.

    The first is an index, a slice where padding stands behind all real tokens, as the runner has
    it; the second int64 [n * num_kv_heads], rows of the cache seen as [rows, head_dim].
    """
    slots = slot_mapping.numpy()
    tokens = np.flatnonzero(slots >= 0)
    n = len(tokens)
    is_in_front = n == 0 or tokens[-1] == n - 1
    slots = slots[tokens].astype(np.int64)
    # A block of the cache is a block of each KV head, one after the other.
    first_rows = slots + slots // block_size * ((num_kv_heads - 1) * block_size)
    rows = first_rows[:, None] + np.arange(num_kv_heads) * block_size
    return slice(n) if is_in_front else torch.from_numpy(tokens), torch.from_numpy(rows.ravel())
