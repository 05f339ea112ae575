"""Gathering blocks out of the paged cache."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def block_rows(block_ids: NDArray[np.int32], num_kv_heads: int) -> NDArray[np.int64]:
    """Return where blocks stand in a cache whose rows are one block of one KV head each.

    Such a row is `block_size * head_dim` numbers side by side: it is copied at memory speed, and
    nothing has to be transposed afterwards.

    Args:
        block_ids: [batch, n].
        num_kv_heads: KV heads in the cache.

    Returns:
        [batch * num_kv_heads * n], in this order.
    """
    heads = np.arange(num_kv_heads)
    return (block_ids[:, None, :] * num_kv_heads + heads[:, None]).ravel()


def gather_rows(cache: torch.Tensor, rows: torch.Tensor, n: int) -> torch.Tensor:
    """Copy rows out of the cache.

    Args:
        cache: [num_blocks, num_kv_heads, block_size, head_dim].
        rows: as `block_rows` gives them.
        n: blocks for each batch row.

    Returns:
        [batch * num_kv_heads, n * block_size, head_dim].
    """
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    flat = cache.view(num_blocks * num_kv_heads, block_size * head_dim)
    return flat.index_select(0, rows).view(-1, n * block_size, head_dim)
