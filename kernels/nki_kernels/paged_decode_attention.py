"""paged_decode_attention: one decode step, each row of the batch over its own context.

    for each row b of the batch:
      q [H, d] -> q^T [d, H]            k of the token [Hkv, d] -> [d, Hkv]
      for each KV head:                              n = up to `segment` tokens of the context
        its own key      scores [G, 1]
        each segment     scores [G, n] = q^T' K^T    G = H / Hkv query heads on G partitions,
                         [G, d] += p^T' V            keys on the free dimension

Every row walks the whole block table, as the shape of a compiled graph demands; blocks -1 are
skipped by the DMA and keys behind the context masked. The online softmax (online_softmax.py)
starts with the token itself, so that a row without context has something to see.

Engines: DMA loads, most of the time; GpSimd computes cache rows; Tensor transposes K and p and
multiplies, with G of 128 rows in use; Vector masks and rescales; Scalar exponentiates.

Bytes, s for each number: for each row 2 * H * d * s for q and out, 2 * Hkv * d * s for its own K
and V, and 2 * Hkv * d * s for every token of the blocks in its table, read once whatever the
number of query heads. A gathered row is tokens_per_row * d * s bytes: 4 KiB for a segment of 2,048
tokens, 128 bfloat16 numbers and blocks of 16 or more, which saturates the DMA. cost.py has the
same as a function.
"""

from .nki_or_emulator import nisa, nki, nl
from .online_softmax import finish, merge, new_state, score, score_masked
from .paged_kv import (
    broadcast_to_partitions,
    find_behind,
    heads_of_this_core,
    key_positions,
    load_first_rows,
    load_segment,
    mask_behind,
    plan_segment,
    split_into_tiles,
    transpose_into,
)


@nki.jit
def paged_decode_attention_kernel(
    q, k, v, k_cache, v_cache, block_tables, context_lens, segment, scale
):
    """Attend with one token for each row.

    Args:
        q: [batch, H, d], H and d at most 128.
        k: [batch, Hkv, d]; v likewise.
        v: see k.
        k_cache: [num_blocks, Hkv, block_size, d]; v_cache likewise. block_size: a power of two.
        v_cache: see k_cache.
        block_tables: [batch, max_blocks] int32, -1 where unused.
        context_lens: [batch] int32, tokens in the cache before the active one.
        segment: compile-time int, tokens of context at a time, a multiple of block_size.
        scale: compile-time float.

    Returns:
        out, like q.
    """
    batch, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    max_blocks = block_tables.shape[1]
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)

    first_head, last_head = heads_of_this_core(num_kv_heads)
    blocks_at_a_time = min(segment // block_size, max_blocks)
    plan = plan_segment(k_cache, blocks_at_a_time * block_size)
    positions = key_positions(plan, blocks_at_a_time, group)
    lengths = broadcast_to_partitions(context_lens)
    for row in range(batch):
        queries, states = _attend_to_self(q, k, v, row, first_head, last_head, scale)
        for start in range(0, max_blocks, blocks_at_a_time):
            num_blocks = min(blocks_at_a_time, max_blocks - start)
            remaining = nl.ndarray((lengths.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(
                dst=remaining,
                data=lengths[:, row : row + 1],
                op0=nl.subtract,
                operand0=float(start * block_size),
            )
            tiles = split_into_tiles(plan, num_blocks)
            all_first_rows = []
            all_behind = []
            for tile in tiles:
                block_ids = block_tables.ap(
                    pattern=[[1, tile[1]], [0, plan["rows_per_block"]]],
                    offset=row * max_blocks + start + tile[0],
                )
                all_first_rows.append(load_first_rows(plan, tile, block_ids))
                all_behind.append(find_behind(plan, tile, remaining))
            # The last segment may be shorter: its columns come in an order of its own.
            if num_blocks < blocks_at_a_time:
                mask = mask_behind(key_positions(plan, num_blocks, group), remaining[0:group, :])
            else:
                mask = mask_behind(positions, remaining[0:group, :])
            for head in range(first_head, last_head):
                k_t, values = load_segment(
                    plan, k_cache, v_cache, head, tiles, all_first_rows, all_behind
                )
                scores = nl.ndarray(mask.shape, dtype=nl.float32, buffer=nl.sbuf)
                score_masked(scores, queries[head - first_head], k_t, scale, mask)
                merge(states[head - first_head], scores, values)
        for head in range(first_head, last_head):
            finished = nl.ndarray((group, head_dim), dtype=out.dtype, buffer=nl.sbuf)
            finish(states[head - first_head], finished)
            nisa.dma_copy(dst=out[row, head * group : (head + 1) * group, :], src=finished)
    return out


def _attend_to_self(q, k, v, row, first_head, last_head, scale):
    """q^T [d, G] and a state that has seen the token itself, for each KV head."""
    num_heads, head_dim = q.shape[1], q.shape[2]
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    q_t = _load_transposed(q, row)
    k_t = _load_transposed(k, row)
    queries = []
    states = []
    for head in range(first_head, last_head):
        query = q_t[:, head * group : (head + 1) * group]
        # On partition 0, where a matmul over one key wants it.
        value = nl.ndarray((1, head_dim), dtype=v.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=value, src=v[row, head : head + 1, :])
        state = new_state(group, head_dim)
        scores = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
        score(scores, query, k_t[:, head : head + 1], scale)
        merge(state, scores, [value])
        queries.append(query)
        states.append(state)
    return queries, states


def _load_transposed(x, row):
    """Load one row of x [batch, heads, d] as [d, heads]."""
    heads, head_dim = x.shape[1], x.shape[2]
    loaded = nl.ndarray((heads, head_dim), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded, src=x[row, :, :])
    turned = nl.ndarray((head_dim, heads), dtype=x.dtype, buffer=nl.sbuf)
    transpose_into(turned, loaded)
    return turned
