r"""segmented_attention: prefill of one request, its chunk over the prior context and itself.

    for each KV head, and as many queries as fit on chip (64 tiles of 128 rows):

                 own keys, in pieces           prior context, a segment at a time
              |  0      1      2    |       |   0    |   1    | ..  by nl.fori_loop, as many as
    queries   +---------------------+       +-----------------+     the context has at run time
     tile 0   |  \     .      .    |       | ###### | ####.. |     # seen
     tile 1   |  ##     \     .    |       | ###### | ####.. |     . masked: behind the context
     tile 2   |  ##     ##     \   |       | ###### | ####.. |     \ causal: by a 128 x 128 mask
              +---------------------+       +-----------------+     own tiles right of \: skipped

A tile is 128 queries of one query head: q^T [d, 128]. For each piece of keys, K^T [d, n] and V
come to SBUF once and serve all tiles of all query heads of the KV head. What each tile keeps is in
online_softmax.py, how a segment is gathered in paged_kv.py.

Engines: DMA loads; GpSimd computes cache rows and positions; Tensor transposes and multiplies;
Vector masks, reduces, rescales; Scalar exponentiates.

Bytes, s for each number: q and out 2 * bucket * H * d * s; own K and V 2 * bucket * Hkv * d * s;
prior K and V 2 * tokens * Hkv * d * s, where tokens are those of the blocks in the segments that
the prior context reaches into; both of the latter once for every 64 tiles (8,192 queries without
GQA, 1,024 with eight query heads a KV head). Blocks -1 are skipped and move nothing. cost.py has
the same as a function.
"""

from .nki_or_emulator import nisa, nki, nl
from .online_softmax import finish, merge, new_state, score, score_masked
from .paged_kv import (
    MASKED_SCORE,
    PARTITIONS,
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

TILES_ON_CHIP = 64
"""Tiles whose state stays in SBUF while keys pass by: about 1 KiB of each partition for one."""


@nki.jit
def segmented_attention_kernel(
    q, k, v, k_cache, v_cache, block_table, left_by_segment, num_segments, num_tokens,
    kv_segment_size, scale,
):
    """Attend with the tokens of one chunk.

    Args:
        q: [bucket, H, d], d at most 128.
        k: [bucket, Hkv, d]; v likewise.
        v: see k.
        k_cache: [num_blocks, Hkv, block_size, d]; v_cache likewise. block_size: a power of two.
        v_cache: see k_cache.
        block_table: [segments * kv_segment_size / block_size] int32, -1 where unused.
        left_by_segment: [segments] int32, tokens of the prior context from each segment on.
        num_segments: [1] int32, segments that the prior context reaches into.
        num_tokens: [1] int32, real rows of the chunk.
        kv_segment_size: compile-time int, a multiple of block_size.
        scale: compile-time float.

    Returns:
        out, like q; finite in rows of padding.
    """
    bucket, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)

    first_head, last_head = heads_of_this_core(num_kv_heads)
    plan = plan_segment(k_cache, kv_segment_size)
    positions = key_positions(plan, kv_segment_size // block_size, PARTITIONS)
    causal = _causal_mask()
    padding = _find_padding(num_tokens, bucket, group * head_dim)
    zeros = nl.ndarray((PARTITIONS, group * head_dim), dtype=q.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    segments = nisa.register_alloc()
    segments_in_sbuf = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=segments_in_sbuf, src=num_segments.reshape((1, 1)))
    nisa.register_load(segments, segments_in_sbuf)

    tiles_of_queries = -(-bucket // PARTITIONS)
    tiles_in_a_pass = max(1, TILES_ON_CHIP // group)
    tiles_in_a_piece = max(1, kv_segment_size // PARTITIONS)
    for head in range(first_head, last_head):
        for first in range(0, tiles_of_queries, tiles_in_a_pass):
            last = min(first + tiles_in_a_pass, tiles_of_queries)
            queries, states = _load_queries(q, head, group, first, last, padding, zeros)

            for piece in range(0, last, tiles_in_a_piece):
                piece_end = min(piece + tiles_in_a_piece, last)
                k_t, values = _load_own(k, v, head, piece, piece_end, padding, zeros)
                for tile in range(max(first, piece), last):
                    for number in range((tile - first) * group, (tile - first + 1) * group):
                        _attend_to_own(
                            states[number], queries[number], k_t, values, tile - piece, causal,
                            scale,
                        )

            def attend_to_segment(segment, head=head, queries=queries, states=states):
                _attend_to_segment(
                    segment, head, queries, states, plan, positions, k_cache, v_cache,
                    block_table, left_by_segment, kv_segment_size, scale,
                )

            nl.fori_loop(0, segments, attend_to_segment)
            _store(out, head, group, first, last, states)
    return out


def _causal_mask():
    """[128, 128] float32: MASKED_SCORE where the key (column) comes after the query (row)."""
    ahead = nl.ndarray((PARTITIONS, PARTITIONS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=ahead, pattern=[[1, PARTITIONS]], offset=0, channel_multiplier=-1)
    mask = nl.ndarray((PARTITIONS, PARTITIONS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=mask, data=ahead, op0=nl.greater, operand0=0.0, op1=nl.multiply, operand1=MASKED_SCORE
    )
    return mask


def _find_padding(num_tokens, bucket, width):
    """For each tile of 128 tokens [rows, width] uint8: 1 in rows of padding."""
    real = broadcast_to_partitions(num_tokens)
    token = nl.ndarray((PARTITIONS, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=token, pattern=[[0, width]], offset=0, channel_multiplier=1)
    padding = []
    for start in range(0, bucket, PARTITIONS):
        rows = min(PARTITIONS, bucket - start)
        is_padding = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=is_padding,
            data=token[0:rows, :],
            op0=nl.add,
            operand0=float(start),
            op1=nl.greater_equal,
            operand1=real[0:rows, :],
        )
        padding.append(is_padding)
    return padding


def _load_rows(x, tile, first_column, width, padding, zeros):
    """Tokens of one tile, some columns of x [bucket, heads, d]: [rows, width], padding 0."""
    bucket, heads, head_dim = x.shape
    rows = padding[tile].shape[0]
    loaded = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
    start = tile * PARTITIONS
    nisa.dma_copy(
        dst=loaded,
        src=x.reshape((bucket, heads * head_dim))[
            start : start + rows, first_column : first_column + width
        ],
    )
    nisa.tensor_copy_predicated(
        dst=loaded, src=zeros[0:rows, 0:width], predicate=padding[tile][:, 0:width]
    )
    return loaded


def _load_queries(q, head, group, first, last, padding, zeros):
    """q^T [d, rows] and a new state for each tile and in it each query head of the KV head."""
    head_dim = q.shape[2]
    queries = []
    states = []
    for tile in range(first, last):
        width = group * head_dim
        loaded = _load_rows(q, tile, head * width, width, padding, zeros)
        rows = loaded.shape[0]
        for member in range(group):
            q_t = nl.ndarray((head_dim, rows), dtype=q.dtype, buffer=nl.sbuf)
            transpose_into(q_t, loaded[:, member * head_dim : (member + 1) * head_dim])
            queries.append(q_t)
            states.append(new_state(rows, head_dim))
    return queries, states


def _load_own(k, v, head, first, last, padding, zeros):
    """K^T [d, n] and V, a list of [rows, d], of the chunk's own tiles from first to last."""
    bucket, _, head_dim = k.shape
    end = min(last * PARTITIONS, bucket)
    k_t = nl.ndarray((head_dim, end - first * PARTITIONS), dtype=k.dtype, buffer=nl.sbuf)
    values = []
    for tile in range(first, last):
        keys = _load_rows(k, tile, head * head_dim, head_dim, padding, zeros)
        column = (tile - first) * PARTITIONS
        transpose_into(k_t[:, column : column + keys.shape[0]], keys)
        values.append(_load_rows(v, tile, head * head_dim, head_dim, padding, zeros))
    return k_t, values


def _attend_to_own(state, q_t, k_t, values, tiles_before, causal, scale):
    """Attend to the tiles of a piece before the query tile, and to its own one causally."""
    rows = q_t.shape[1]
    before = min(tiles_before * PARTITIONS, k_t.shape[1])
    if before == k_t.shape[1]:  # the piece ends before the query tile
        scores = nl.ndarray((rows, before), dtype=nl.float32, buffer=nl.sbuf)
        score(scores, q_t, k_t, scale)
        merge(state, scores, values)
        return
    scores = nl.ndarray((rows, before + rows), dtype=nl.float32, buffer=nl.sbuf)
    if before > 0:
        score(scores[:, 0:before], q_t, k_t[:, 0:before], scale)
    score_masked(
        scores[:, before : before + rows], q_t, k_t[:, before : before + rows], scale,
        causal[0:rows, 0:rows],
    )
    merge(state, scores, values[0 : tiles_before + 1])


def _attend_to_segment(
    segment, head, queries, states, plan, positions, k_cache, v_cache, block_table,
    left_by_segment, kv_segment_size, scale,
):
    """Attend with every tile to one segment of the prior context; `segment` is a register."""
    num_blocks = kv_segment_size // plan["block_size"]
    num_segments = left_by_segment.shape[0]
    left = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=left,
        src=left_by_segment.ap(
            pattern=[[0, PARTITIONS], [1, 1]], scalar_offset=segment, indirect_dim=0
        ),
    )
    remaining = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=remaining, src=left)

    table = block_table.reshape((num_segments, num_blocks))
    tiles = split_into_tiles(plan, num_blocks)
    all_first_rows = []
    all_behind = []
    for tile in tiles:
        block_ids = table.ap(
            pattern=[[1, tile[1]], [0, plan["rows_per_block"]]],
            offset=tile[0],
            scalar_offset=segment,
            indirect_dim=0,
        )
        all_first_rows.append(load_first_rows(plan, tile, block_ids))
        all_behind.append(find_behind(plan, tile, remaining))
    k_t, values = load_segment(
        plan, k_cache, v_cache, head, tiles, all_first_rows, all_behind
    )
    mask = mask_behind(positions, remaining)
    for number in range(len(queries)):
        rows = queries[number].shape[1]
        scores = nl.ndarray((rows, kv_segment_size), dtype=nl.float32, buffer=nl.sbuf)
        score_masked(scores, queries[number], k_t, scale, mask[0:rows, :])
        merge(states[number], scores, values)


def _store(out, head, group, first, last, states):
    """Write the results of a pass: one DMA for each tile, all query heads side by side."""
    bucket, num_heads, head_dim = out.shape
    width = group * head_dim
    for tile in range(first, last):
        start = tile * PARTITIONS
        rows = min(PARTITIONS, bucket - start)
        finished = nl.ndarray((rows, width), dtype=out.dtype, buffer=nl.sbuf)
        for member in range(group):
            state = states[(tile - first) * group + member]
            finish(state, finished[:, member * head_dim : (member + 1) * head_dim])
        nisa.dma_copy(
            dst=out.reshape((bucket, num_heads * head_dim))[
                start : start + rows, head * width : (head + 1) * width
            ],
            src=finished,
        )
