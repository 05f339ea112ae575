"""Reading a segment of the paged cache: which rows, one gather each for K and V, and the masks.

A gather brings one row of HBM to each partition. A row is not a whole block but as many tokens of
one as it takes to spread a segment over all 128 partitions (tokens_per_row), because an engine
works on 128 partitions as fast as on 32. Block 32, segment 1024, head_dim 128, bfloat16:

    cache [num_blocks, num_kv_heads, 32, 128]   seen as   rows [.., 8 * 128], of 2 KiB each

    segment: 32 blocks x 4 rows          tile in SBUF            K^T, columns in the order
      block 7   tokens    0..31   ->  partition 0:   0..7        that the gather gives:
                                      partition 1:   8..15         0,  8, 16 .. 1016   (token 0
      block 3   tokens   32..63   ->  partition 4:  32..39         1,  9, 17 .. 1017    of a row,
      ...                              ...                         ...                  1, ..)
      block 9   tokens 992..1023  ->  partition 127: 1016..1023    7, 15, 23 .. 1023

The keys stand in another order than the tokens; softmax does not mind, the mask follows it.
What lies behind the context, or was skipped because its block is -1, is set to 0 after the
gather: it may be NaN, and NaN times a weight of 0 is NaN.

Helpers of a kernel: nothing here runs by itself.
"""

from .nki_or_emulator import nisa, nl

PARTITIONS = 128

MASKED_SCORE = -1.0e30
"""Added to a masked score: finite, so that no difference of scores is NaN; exp of it is 0."""


def tokens_per_row(segment, block_size):
    """Tokens of a block that one partition holds: the fewest for which 128 partitions suffice.

    Powers of two up to block_size, which must be one itself; segment is a multiple of it.
    """
    tokens = 1
    while tokens < block_size and segment // tokens > PARTITIONS:
        tokens *= 2
    return tokens


def plan_segment(k_cache, segment):
    """Compute once what every segment of a kernel needs.

    Args:
        k_cache: [num_blocks, num_kv_heads, block_size, head_dim], HBM.
        segment: tokens, a multiple of block_size.

    Returns:
        A dict of sizes and of SBUF tensors:
        row_offsets: for each KV head, [128, 1] int32: rows from a block's first row of head 0
            to the row of partition p.
        block_stride: [128, 1] int32, rows from a block to the next.
        positions: [128, tokens * head_dim] float32, the token in a tile that an element is of.
        zeros: like a gathered tile.
    """
    num_blocks, num_kv_heads, block_size, head_dim = k_cache.shape
    tokens = tokens_per_row(segment, block_size)
    rows_per_block = block_size // tokens
    partition = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=partition, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    row_in_block = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=row_in_block, data=partition, op0=nl.bitwise_and, operand0=rows_per_block - 1
    )
    row_offsets = []
    for head in range(num_kv_heads):
        first_row = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=first_row, value=head * rows_per_block)
        row_offset = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=row_offset, data1=row_in_block, data2=first_row, op=nl.add)
        row_offsets.append(row_offset)
    block_stride = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=block_stride, value=num_kv_heads * rows_per_block)

    positions = nl.ndarray((PARTITIONS, tokens * head_dim), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(
        dst=positions, pattern=[[1, tokens], [0, head_dim]], offset=0, channel_multiplier=tokens
    )
    zeros = nl.ndarray((PARTITIONS, tokens * head_dim), dtype=k_cache.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    return {
        "tokens": tokens,
        "rows_per_block": rows_per_block,
        "block_size": block_size,
        "head_dim": head_dim,
        "cache_rows": num_blocks * num_kv_heads * rows_per_block,
        "row_offsets": row_offsets,
        "block_stride": block_stride,
        "positions": positions,
        "zeros": zeros,
    }


def split_into_tiles(plan, num_blocks):
    """Cut a segment into gathers of at most 128 rows: a list of (first block, blocks)."""
    most = PARTITIONS // plan["rows_per_block"]
    tiles = []
    for first in range(0, num_blocks, most):
        tiles.append((first, min(most, num_blocks - first)))  # noqa: PERF401  (nki 0.6)
    return tiles


def key_positions(plan, num_blocks, rows):
    """The token in the segment that each column of K^T is: [rows, tokens], all rows alike."""
    columns = num_blocks * plan["block_size"]
    positions = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    tokens, block_size = plan["tokens"], plan["block_size"]
    for first, count in split_into_tiles(plan, num_blocks):
        start, end = first * block_size, (first + count) * block_size
        nisa.iota(
            dst=positions[:, start:end],
            pattern=[[1, tokens], [tokens, (end - start) // tokens]],
            offset=start,
            channel_multiplier=0,
        )
    return positions


def mask_behind(positions, remaining):
    """MASKED_SCORE for keys at or behind `remaining` [rows, 1], else 0; like positions."""
    mask = nl.ndarray(positions.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=mask,
        data=positions,
        op0=nl.greater_equal,
        operand0=remaining,
        op1=nl.multiply,
        operand1=MASKED_SCORE,
    )
    return mask


def load_first_rows(plan, tile, block_ids):
    """Row of the cache where the block of each partition begins.

    Args:
        plan: from plan_segment.
        tile: (first block, blocks).
        block_ids: access pattern in HBM of [blocks, rows_per_block] numbers, each id repeated.

    Returns:
        [rows, 1] int32 in SBUF; below 0 where the block is -1.
    """
    rows = tile[1] * plan["rows_per_block"]
    ids = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=ids, src=block_ids)
    first_rows = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=first_rows, data1=ids, data2=plan["block_stride"][0:rows, :], op=nl.multiply
    )
    return first_rows


def find_behind(plan, tile, remaining):
    """1 for elements of a gathered tile at or behind `remaining` [128, 1], else 0; uint8."""
    rows = tile[1] * plan["rows_per_block"]
    behind = nl.ndarray((rows, plan["zeros"].shape[1]), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=behind,
        data=plan["positions"][0:rows, :],
        op0=nl.add,
        operand0=float(tile[0] * plan["block_size"]),
        op1=nl.greater_equal,
        operand1=remaining[0:rows, :],
    )
    return behind


def gather(plan, cache, head, first_rows, behind):
    """Bring one tile of keys or values to SBUF: [rows, tokens * head_dim], 0 where behind."""
    rows, elements = behind.shape
    index = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=index, data1=first_rows, data2=plan["row_offsets"][head][0:rows, :], op=nl.add
    )
    tile = nl.ndarray((rows, elements), dtype=cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=tile,
        # -1 as uint32 is out of bounds, which skips the row.
        src=cache.reshape((plan["cache_rows"], elements)).ap(
            pattern=[[elements, rows], [1, elements]],
            vector_offset=index.view(nl.uint32),
            indirect_dim=0,
        ),
        oob_mode=nisa.oob_mode.skip,
    )
    nisa.tensor_copy_predicated(dst=tile, src=plan["zeros"][0:rows, :], predicate=behind)
    return tile


def transpose_into(dst, data):
    """Copy data [rows, columns] to dst [columns, rows], both in SBUF, through PSUM."""
    turned = nl.ndarray((data.shape[1], data.shape[0]), dtype=data.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=data)
    nisa.tensor_copy(dst=dst, src=turned)


def load_segment(plan, k_cache, v_cache, head, tiles, all_first_rows, all_behind):
    """Load K and V of one segment for one KV head.

    Args:
        plan: from plan_segment.
        k_cache: [num_blocks, num_kv_heads, block_size, head_dim], HBM; v_cache likewise.
        v_cache: see k_cache.
        head: the KV head.
        tiles: from split_into_tiles.
        all_first_rows: from load_first_rows, for each tile.
        all_behind: from find_behind, for each tile.

    Returns:
        K^T [head_dim, tokens], and the values as a list of [rows, head_dim] whose rows are the
        columns of K^T, in order.
    """
    head_dim = plan["head_dim"]
    last_tile = tiles[len(tiles) - 1]
    num_keys = (last_tile[0] + last_tile[1]) * plan["block_size"]
    k_t = nl.ndarray((head_dim, num_keys), dtype=k_cache.dtype, buffer=nl.sbuf)
    values = []
    column = 0
    for number in range(len(tiles)):
        keys = gather(plan, k_cache, head, all_first_rows[number], all_behind[number])
        tile = gather(plan, v_cache, head, all_first_rows[number], all_behind[number])
        rows = keys.shape[0]
        for token in range(plan["tokens"]):
            start, end = token * head_dim, (token + 1) * head_dim
            transpose_into(k_t[:, column : column + rows], keys[:, start:end])
            values.append(tile[:, start:end])
            column += rows
    return k_t, values


def broadcast_to_partitions(numbers):
    """Copy a vector of int32 in HBM to all partitions: [128, length] float32."""
    length = numbers.shape[0]
    copies = nl.ndarray((PARTITIONS, length), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=copies, src=numbers.ap(pattern=[[0, PARTITIONS], [1, length]]))
    as_float = nl.ndarray((PARTITIONS, length), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=as_float, src=copies)
    return as_float


def heads_of_this_core(num_kv_heads):
    """KV heads (first, one past the last) that this core of a logical core works on.

    Both cores must run the same instructions, so that heads that cannot be halved are computed by
    both, which write the same numbers.
    """
    cores = nl.num_programs(0)
    if num_kv_heads % cores:
        return 0, num_kv_heads
    share = num_kv_heads // cores
    return nl.program_id(0) * share, (nl.program_id(0) + 1) * share
