"""Reference of paged_decode_attention: one query per request over its paged context."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .memo import remember_last
from .paged_kv import block_rows, gather_rows


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
    """Attend with one token per row; see `dispatch.Kernels` for the arguments.

    Every batch row is laid out as its full blocks, up to as many as the longest context has, then
    its last block, which holds the active token. A CPU may choose that number at run time; a
    compiled graph reads the whole table.
    """
    batch, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    plan = _plan(block_tables, context_lens, num_kv_heads, block_size)
    # The query heads of one KV head are the rows of one matrix.
    queries = (q * scale).view(batch * num_kv_heads, -1, head_dim).float()
    scores = torch.bmm(queries, _lay_out(k_cache, k, plan).mT)
    weights = scores.add_(plan.bias).softmax(-1)
    # Laid out only now, in the memory that the keys have just left: it is still in the cache.
    out = torch.bmm(weights, _lay_out(v_cache, v, plan))
    return out.view(batch, num_heads, head_dim).to(q.dtype)


class _Plan(NamedTuple):
    """Where everything is, for every layer of a step.

    Attributes:
        num_columns: blocks that each batch row is laid out in.
        rows: of the cache to gather, see `block_rows`.
        in_context: [batch, 1, block_size, 1], True for slots of the last block before it.
        is_active: [batch, 1, block_size, 1], True for its own slot there.
        bias: [batch * num_kv_heads, 1, num_columns * block_size], -inf for keys that the row must
            not see, else 0.
    """

    num_columns: int
    rows: torch.Tensor
    in_context: torch.Tensor
    is_active: torch.Tensor
    bias: torch.Tensor


@remember_last
def _plan(
    block_tables: torch.Tensor, context_lens: torch.Tensor, num_kv_heads: int, block_size: int
) -> _Plan:
    # A row without context may name no block at all; of block 0 nothing is used then.
    block_tables, context_lens = block_tables.clamp(min=0), context_lens.long()
    num_full, offsets = context_lens // block_size, context_lens % block_size
    num_columns = int(num_full.max()) + 1
    is_full = torch.arange(num_columns) < num_full[:, None]
    # Where a row has no more full blocks, a stand-in is gathered that surely holds numbers: the
    # first block of the longest context. Its weight is 0, and 0 * NaN would be NaN.
    stand_in = block_tables[num_full.argmax(), 0]
    block_ids = torch.where(is_full, block_tables[:, :num_columns], stand_in)
    block_ids[:, -1:] = block_tables.gather(1, num_full[:, None])
    visible = is_full.repeat_interleave(block_size, dim=1)
    slots = torch.arange(block_size)
    visible[:, -block_size:] = slots <= offsets[:, None]
    bias = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    return _Plan(
        num_columns=num_columns,
        rows=block_rows(block_ids, num_kv_heads),
        in_context=(slots < offsets[:, None])[:, None, :, None],
        is_active=(slots == offsets[:, None])[:, None, :, None],
        bias=bias.repeat_interleave(num_kv_heads, dim=0)[:, None],
    )


def _lay_out(cache: torch.Tensor, active: torch.Tensor, plan: _Plan) -> torch.Tensor:
    """Gather keys or values: [batch * num_kv_heads, num_columns * block_size, head_dim]."""
    gathered = gather_rows(cache, plan.rows, plan.num_columns)
    columns = gathered.view(len(active), cache.shape[1], plan.num_columns, *cache.shape[2:])
    last = columns[:, :, -1]
    # The active token stands behind its context, whether or not the cache has it already. Slots
    # behind it are cleared: where, not a product, since 0 * NaN is NaN.
    behind = torch.where(plan.is_active, active[:, :, None].to(cache.dtype), 0.0)
    last.copy_(torch.where(plan.in_context, last, behind))
    return gathered.float()
