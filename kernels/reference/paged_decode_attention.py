"""Reference of paged_decode_attention: one query per request over its paged context."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .memo import remember_last
from .paged_kv import block_rows, gather_rows, lay_out

MIN_GAIN_BYTES = 2**19
"""A separate group must save at least so many bytes of keys and values: it takes about as long as
copying them (measured, 45 microseconds)."""


def paged_decode_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend with one token per row; see `interface.Kernels` for the arguments.

    Batch rows are laid out side by side, as long as the longest of them; rows of very different
    lengths are attended to in groups, see `group_rows`. A CPU may choose that at run time; a
    compiled graph reads the whole table.
    """
    if len(q) == 1:
        return _attend_alone(q, k, v, k_cache, v_cache, block_tables[0], int(context_lens), scale)
    groups = _plan(block_tables, context_lens, k_cache.shape, k_cache.element_size())
    if len(groups) == 1:
        return _attend(q, k, v, k_cache, v_cache, groups[0], scale)
    out = torch.empty(q.shape, dtype=q.dtype)
    for group in groups:
        rows = group.batch_rows
        q_k_v = (tensor.index_select(0, rows) for tensor in (q, k, v))
        out.index_copy_(0, rows, _attend(*q_k_v, k_cache, v_cache, group, scale))
    return out


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    group: _Group,
    scale: float,
) -> torch.Tensor:
    """Attend with the rows of one group."""
    batch, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    # The query heads of one KV head are the rows of one matrix.
    queries = (q * scale).view(batch * num_kv_heads, -1, head_dim).float()
    scores = torch.bmm(queries, _lay_out(k_cache, k, group).mT)
    weights = scores.add_(group.bias).softmax(-1)
    # Laid out only now, in the memory that the keys have just left: it is still in the cache.
    out = torch.bmm(weights, _lay_out(v_cache, v, group))
    return out.view(batch, num_heads, head_dim).to(q.dtype)


def _attend_alone(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_len: int,
    scale: float,
) -> torch.Tensor:
    """Attend with the only row of a batch, for which nothing has to be planned or masked."""
    num_blocks = -(-context_len // k_cache.shape[2])
    blocks = block_table[:num_blocks].clamp_min(0)  # reads block 0 where none is named, as `_plan`
    keys, values = (
        lay_out(cache, blocks, context_len, active.transpose(0, 1))
        for cache, active in ((k_cache, k), (v_cache, v))
    )
    queries = (q * scale).view(len(keys), -1, q.shape[-1]).float()
    weights = torch.bmm(queries, keys.mT).softmax(-1)
    return torch.bmm(weights, values).view(q.shape).to(q.dtype)


def group_rows(num_columns: list[int], min_gain: int) -> list[list[int]]:
    """Part batch rows so that short ones are not laid out as long as long ones.

    Args:
        num_columns: blocks of each row.
        min_gain: part rows where it saves so many blocks; a group costs time of its own.

    Returns:
        Row numbers by group, each in order; the longest rows first.
    """
    order = sorted(range(len(num_columns)), key=lambda row: -num_columns[row])
    groups = []
    while order:
        longest = num_columns[order[0]]
        gains = [(longest - num_columns[row]) * (len(order) - i) for i, row in enumerate(order)]
        cut = gains.index(max(gains)) if max(gains) >= min_gain else len(order)
        groups.append(sorted(order[:cut]))
        order = order[cut:]
    return groups


class _Group(NamedTuple):
    """Batch rows that are laid out side by side, for every layer of a step.

    What is gathered is [rows * num_kv_heads, num_columns * block_size, head_dim]; a slot of it is
    a row of its first two dimensions made one.

    Attributes:
        batch_rows: [rows], their numbers.
        num_columns: blocks that each row is laid out in: its full blocks, as many as the longest
            row has, then its last one, which holds the active token.
        cache_rows: to gather, see `block_rows`.
        active_slots: [rows * num_kv_heads], where the active tokens go.
        unused_slots: slots behind them, whatever their number.
        bias: [rows * num_kv_heads, 1, num_columns * block_size], -inf for keys that a row must
            not see, else 0.
    """

    batch_rows: torch.Tensor
    num_columns: int
    cache_rows: torch.Tensor
    active_slots: torch.Tensor
    unused_slots: torch.Tensor
    bias: torch.Tensor


@remember_last
def _plan(
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    cache_shape: tuple[int, ...],
    element_size: int,
) -> list[_Group]:
    """Part the batch and find out where everything is.

    In NumPy: these are many steps on few numbers, for which torch takes three times as long.
    """
    _, num_kv_heads, block_size, head_dim = cache_shape
    # A row without context may name no block at all; of block 0 nothing is used then.
    tables, lengths = np.maximum(block_tables.numpy(), 0), context_lens.numpy()
    block_bytes = 2 * num_kv_heads * block_size * head_dim * element_size
    groups = group_rows(
        (lengths // block_size + 1).tolist(), min_gain=-(-MIN_GAIN_BYTES // block_bytes)
    )
    return [
        _plan_group(np.array(rows), tables[rows], lengths[rows], num_kv_heads, block_size)
        for rows in groups
    ]


def _plan_group(
    batch_rows: NDArray[np.int64],
    tables: NDArray[np.int32],
    lengths: NDArray[np.int32],
    num_kv_heads: int,
    block_size: int,
) -> _Group:
    """Lay out batch rows with these block tables and context lengths."""
    num_full, offsets = lengths // block_size, lengths % block_size
    num_columns = int(num_full.max()) + 1
    is_full = np.arange(num_columns) < num_full[:, None]
    # Where a row has no more full blocks, a stand-in is gathered that surely holds numbers: the
    # first block of the longest context. Its weight is 0, and 0 * NaN would be NaN.
    block_ids = np.where(is_full, tables[:, :num_columns], tables[num_full.argmax(), 0])
    block_ids[:, -1] = tables[np.arange(len(tables)), num_full]

    visible = is_full.repeat(block_size, axis=1)
    visible[:, -block_size:] = in_last = np.arange(block_size) <= offsets[:, None]
    bias = np.where(visible, np.float32(0), np.float32(-np.inf))
    # The last block of every row ends the row; from here on every KV head is a row.
    ends = (np.arange(len(tables) * num_kv_heads) + 1)[:, None] * visible.shape[1]
    last_slots = ends - block_size + np.arange(block_size)
    active_slots = last_slots[:, 0] + offsets.repeat(num_kv_heads)
    return _Group(
        batch_rows=torch.from_numpy(batch_rows),
        num_columns=num_columns,
        cache_rows=torch.from_numpy(block_rows(block_ids, num_kv_heads)),
        active_slots=torch.from_numpy(active_slots),
        unused_slots=torch.from_numpy(last_slots[~in_last.repeat(num_kv_heads, axis=0)]),
        bias=torch.from_numpy(bias.repeat(num_kv_heads, axis=0)[:, None]),
    )


def _lay_out(cache: torch.Tensor, active: torch.Tensor, group: _Group) -> torch.Tensor:
    """Gather keys or values: [rows * num_kv_heads, num_columns * block_size, head_dim]."""
    gathered = gather_rows(cache, group.cache_rows, group.num_columns)
    head_dim = cache.shape[-1]
    by_slot = gathered.view(-1, head_dim)
    # Cleared, since their weight of 0 times NaN would be NaN.
    by_slot.index_fill_(0, group.unused_slots, 0.0)
    # The active token stands behind its context, whether or not the cache has it already.
    by_slot.index_copy_(0, group.active_slots, active.reshape(-1, head_dim).to(cache.dtype))
    return gathered.float()
