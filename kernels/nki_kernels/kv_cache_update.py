"""kv_cache_update: scatter new keys and values into the paged cache.

    slots [T]      k [T, Hkv * d]                          k_cache, as rows of one token and head
      | 128 at a time  | 128 tokens at a time              [num_blocks * Hkv * block_size, d]
      v                v                                      ^
    [128, 1] -> row = block * Hkv * block_size                |
               + head * block_size + offset  ---- one index for each partition: a scatter

A slot is block * block_size + offset, and the row follows from it without a division:
row = slot * Hkv - offset * (Hkv - 1) + head * block_size, offset = slot & (block_size - 1).
Slot -1 gives a row below 0, as uint32 out of bounds, and the DMA skips it.

Engines: GpSimd, exact int32 arithmetic on the indices (Vector would round above 2^24); Vector, the
`and`; DMA, everything else. No Tensor or Scalar Engine.

Bytes for T tokens, s bytes a number: reads 2 * T * Hkv * d * s, and 4 * T of slots; writes
2 * d * s * Hkv for each token that has a slot. A scattered row is d * s bytes, 256 for 128
bfloat16 numbers: such small writes are bound by the DMA's fixed cost, not by its bandwidth.
"""

from .nki_or_emulator import nisa, nki, nl
from .paged_kv import PARTITIONS, heads_of_this_core


@nki.jit
def kv_cache_update_kernel(k, v, k_cache, v_cache, slot_mapping):
    """Write k and v into their slots.

    Args:
        k: [T, Hkv, d]; v likewise.
        v: see k.
        k_cache: [num_blocks, Hkv, block_size, d]; v_cache likewise. block_size: a power of two.
        v_cache: see k_cache.
        slot_mapping: [T] int32, -1 to skip; no slot twice.

    Returns:
        k_cache and v_cache, the arguments themselves: that is what makes the compiler alias them
        to outputs, so that a compiled graph sees the writes.
    """
    num_tokens, num_kv_heads, _ = k.shape
    first_head, last_head = heads_of_this_core(num_kv_heads)
    slots_in_hbm = slot_mapping.reshape((num_tokens, 1))
    for start in range(0, num_tokens, PARTITIONS):
        end = min(start + PARTITIONS, num_tokens)
        slots = nl.ndarray((end - start, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=slots, src=slots_in_hbm[start:end, :])
        rows = _rows_of_head_0(slots, num_kv_heads, k_cache.shape[2])
        _scatter(k, k_cache, start, end, rows, first_head, last_head)
        _scatter(v, v_cache, start, end, rows, first_head, last_head)
    return k_cache, v_cache


def _rows_of_head_0(slots, num_kv_heads, block_size):
    """[tokens, 1] int32: the row of each token's slot for head 0; below 0 for slot -1."""
    offsets = nl.ndarray(slots.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=offsets, data=slots, op0=nl.bitwise_and, operand0=block_size - 1)
    all_heads = _times(slots, num_kv_heads)
    back = _times(offsets, num_kv_heads - 1)
    rows = nl.ndarray(slots.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=rows, data1=all_heads, data2=back, op=nl.subtract)
    return rows


def _times(numbers, factor):
    """Multiply by a constant, exactly."""
    factors = nl.ndarray(numbers.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=factors, value=factor)
    product = nl.ndarray(numbers.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=numbers, data2=factors, op=nl.multiply)
    return product


def _scatter(new, cache, start, end, rows, first_head, last_head):
    """Write tokens start to end of `new` into the cache, one scatter for each head."""
    num_tokens, num_kv_heads, head_dim = new.shape
    num_blocks, _, block_size, _ = cache.shape
    tile = nl.ndarray((end - start, num_kv_heads * head_dim), dtype=new.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=tile, src=new.reshape((num_tokens, num_kv_heads * head_dim))[start:end, :]
    )
    cache_rows = cache.reshape((num_blocks * num_kv_heads * block_size, head_dim))
    for head in range(first_head, last_head):
        first_row = nl.ndarray(rows.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=first_row, value=head * block_size)
        index = nl.ndarray(rows.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=index, data1=rows, data2=first_row, op=nl.add)
        nisa.dma_copy(
            dst=cache_rows.ap(
                pattern=[[head_dim, end - start], [1, head_dim]],
                vector_offset=index.view(nl.uint32),
                indirect_dim=0,
            ),
            src=tile[:, head * head_dim : (head + 1) * head_dim],
            oob_mode=nisa.oob_mode.skip,
        )
