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
    tokens, blocks, offsets = _locate(slot_mapping, k_cache.shape[2])
    if len(tokens) < len(slot_mapping):
        k, v = k.index_select(0, tokens), v.index_select(0, tokens)
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v


@remember_last
def _locate(
    slot_mapping: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the tokens that have a slot, the block of each and its offset there."""
    (tokens,) = np.nonzero(slot_mapping.numpy() >= 0)
    slots = slot_mapping.numpy()[tokens].astype(np.int64)
    return tuple(map(torch.from_numpy, (tokens, slots // block_size, slots % block_size)))
