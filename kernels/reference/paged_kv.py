"""Gathering blocks out of the paged cache."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .memo import remember_last


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
    return _by_row(cache).index_select(0, rows).view(-1, n * cache.shape[2], cache.shape[3])


def lay_out(
    cache: torch.Tensor, blocks: torch.Tensor, num_prior: int, own: torch.Tensor
) -> torch.Tensor:
    """Put the first `num_prior` tokens of `blocks` in front of `own`; no other slot is used.

    Args:
        cache: [num_blocks, num_kv_heads, block_size, head_dim].
        blocks: [n], ids; as many as the tokens need.
        num_prior: of a request, in the cache.
        own: [num_kv_heads, length, head_dim]; rounded to what the cache would keep of it.

    Returns:
        [num_kv_heads, num_prior + length, head_dim], float32; each head is contiguous.

    Raises:
        IndexError: the blocks do not hold so many tokens, or there is no such block.
    """
    if num_prior == 0:
        return own.to(cache.dtype).float().contiguous()
    num_kv_heads, length, head_dim = own.shape
    end = len(blocks) * cache.shape[2]
    if num_prior > end:
        raise IndexError(f"num_prior: {num_prior} tokens do not fit into {len(blocks)} blocks")
    by_row, rows = _by_row(cache), _rows_by_head(blocks, num_kv_heads)
    out = cache.new_empty(num_kv_heads, end + length, head_dim)
    for head in range(num_kv_heads):
        target = out[head, :end].view(-1, by_row.shape[1])
        torch.index_select(by_row, 0, rows[head], out=target)
    # Over what the last block holds behind the prior tokens.
    out[:, num_prior : num_prior + length] = own
    return out[:, : num_prior + length].float()


def _by_row(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(cache.shape[0] * cache.shape[1], -1)


@remember_last
def _rows_by_head(blocks: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    rows = torch.from_numpy(block_rows(blocks.numpy()[None], num_kv_heads))
    return rows.view(num_kv_heads, -1)
