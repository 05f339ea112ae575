"""What the kernels cost on a Trn2, from what they move and multiply: the roofline, no measurement.

    cost("segmented_attention", AttentionShape(32, 8, 128), bucket=1024, context=4096)
    -> KernelCost(kernel='segmented_attention', bytes=..., flops=..., seconds=..., bound='flops')

Bytes and matmul flops are those that the emulator counts, in closed form; a test holds the two
equal. Seconds are the longer of bytes / bandwidth and flops / peak: a lower bound, which knows
nothing of the time between instructions, of small DMAs, or of the other engines. NOT MEASURED.

Rates: of one physical core, the lower where sources disagree. Peak: 79 TFLOPS dense bfloat16
and 20 float32 (NKI guide "Trainium2 architecture"; the chip's 667 and 181 divided by 8 would be
83.4 and 22.6). HBM: the chip's 2.9 TB/s divided by 8; 16 DMA engines of 23 GB/s could move 368.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .nki_kernels.arguments import DECODE_SEGMENT
from .nki_kernels.paged_kv import PARTITIONS, tokens_per_row
from .nki_kernels.segmented_attention import TILES_ON_CHIP

HBM_BYTES_PER_SECOND = 2.9e12 / 8
FLOPS_PER_SECOND = {2: 79e12, 4: 20e12}
"""By bytes a number: bfloat16, float32."""

INT32_BYTES = 4


@dataclass(frozen=True)
class AttentionShape:
    """The attention of one layer on one device.

    Attributes:
        num_heads: query heads on this device: those of the model divided by the TP degree.
        num_kv_heads: KV heads on this device.
        head_dim: numbers in a head.
        block_size: tokens in a KV block.
        kv_segment_size: tokens of prior context that prefill reads at a time.
        itemsize: bytes a number: 2 for bfloat16, 4 for float32.
        cores: physical cores of the logical core, NEURON_LOGICAL_NC_CONFIG: 1 or 2.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 32
    kv_segment_size: int = 1024
    itemsize: int = 2
    cores: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token."""
        return 2 * self.num_kv_heads * self.head_dim * self.itemsize


@dataclass(frozen=True)
class KernelCost:
    """One call of a kernel.

    Attributes:
        kernel: its name.
        bytes: read from and written to HBM.
        flops: of its matmuls, masked keys included.
        seconds: the roofline.
        bound: "bytes" or "flops", whichever takes longer.
    """

    kernel: str
    bytes: int
    flops: int
    seconds: float
    bound: str


def cost(kernel: str, shape: AttentionShape, **sizes: Any) -> KernelCost:
    """Return the cost of one call, for one layer.

    Args:
        kernel: "segmented_attention" (sizes: bucket, context), "paged_decode_attention" (sizes:
            context_lens, max_context) or "kv_cache_update" (sizes: num_tokens).
        shape: of the attention.
        sizes: see the function for the kernel, below.

    Raises:
        ValueError: there is no such kernel, or no rate for the number format.
    """
    if kernel not in _COUNT:
        raise ValueError(f"kernel: {kernel!r} is unknown; choose one of {sorted(_COUNT)}")
    if shape.itemsize not in FLOPS_PER_SECOND:
        raise ValueError(f"itemsize: {shape.itemsize} must be one of {sorted(FLOPS_PER_SECOND)}")
    num_bytes, flops = _COUNT[kernel](shape, **sizes)
    # Heads that cannot be halved are computed by both cores.
    cores = 1 if shape.num_kv_heads % shape.cores else shape.cores
    by_bytes = num_bytes / (HBM_BYTES_PER_SECOND * cores)
    by_flops = flops / (FLOPS_PER_SECOND[shape.itemsize] * cores)
    bound = "bytes" if by_bytes >= by_flops else "flops"
    return KernelCost(kernel, num_bytes, flops, max(by_bytes, by_flops), bound)


def count_segmented_attention(
    shape: AttentionShape, *, bucket: int, context: int, num_tokens: int | None = None
) -> tuple[int, int]:
    """Count (bytes, flops) of one prefill chunk.

    Args:
        shape: of the attention.
        bucket: rows, padding included.
        context: tokens of the request that are in the cache already.
        num_tokens: real rows; by default all. Their blocks are in the table already, and are read
            if they share the last segment with the context.
    """
    group = shape.num_heads // shape.num_kv_heads
    tiles = -(-bucket // PARTITIONS)
    tiles_in_a_pass = max(1, TILES_ON_CHIP // group)
    num_segments = -(-context // shape.kv_segment_size)
    segments_end = num_segments * shape.kv_segment_size
    blocks_in_table = -(-(context + (num_tokens or bucket)) // shape.block_size)
    prior = min(blocks_in_table * shape.block_size, segments_end)
    rows = shape.kv_segment_size // tokens_per_row(shape.kv_segment_size, shape.block_size)

    row_bytes = shape.num_heads * shape.head_dim * shape.itemsize
    num_bytes = 2 * bucket * row_bytes + INT32_BYTES * (PARTITIONS + 1)
    for first in range(0, tiles, tiles_in_a_pass):
        own = min((first + tiles_in_a_pass) * PARTITIONS, bucket)
        num_bytes += (own + prior) * shape.kv_bytes_per_token
        num_bytes += num_segments * shape.num_kv_heads * INT32_BYTES * (PARTITIONS + rows)

    scores = bucket * segments_end
    for tile in range(tiles):
        own_rows = min(PARTITIONS, bucket - tile * PARTITIONS)
        scores += own_rows * (tile * PARTITIONS + own_rows)
    return num_bytes, 4 * scores * shape.num_heads * shape.head_dim


def count_paged_decode_attention(
    shape: AttentionShape, *, context_lens: Sequence[int], max_context: int
) -> tuple[int, int]:
    """Count (bytes, flops) of one decode step.

    Args:
        shape: of the attention; kv_segment_size plays no part.
        context_lens: tokens in the cache of each row; a row of padding, which copies the block
            table of the first row, counts like that row.
        max_context: tokens that a row of the block table covers: the compiled shape.
    """
    max_blocks = -(-max_context // shape.block_size)
    segment = min(max(DECODE_SEGMENT // shape.block_size, 1), max_blocks) * shape.block_size
    rows_per_block = shape.block_size // tokens_per_row(segment, shape.block_size)
    # A row has a block for its next token.
    blocks = sum(min(length // shape.block_size + 1, max_blocks) for length in context_lens)
    batch = len(context_lens)
    row_bytes = 2 * shape.num_heads * shape.head_dim * shape.itemsize
    num_bytes = batch * (row_bytes + shape.kv_bytes_per_token)
    num_bytes += blocks * shape.block_size * shape.kv_bytes_per_token
    num_bytes += batch * INT32_BYTES * (PARTITIONS + max_blocks * rows_per_block)
    keys = batch * (max_blocks * shape.block_size + 1)
    return num_bytes, 4 * keys * shape.num_heads * shape.head_dim


def count_kv_cache_update(
    shape: AttentionShape, *, num_tokens: int, num_slots: int | None = None
) -> tuple[int, int]:
    """Count (bytes, flops) of a cache update.

    Args:
        shape: of the attention.
        num_tokens: rows, padding included.
        num_slots: rows that have a slot; by default all.
    """
    written = num_tokens if num_slots is None else num_slots
    return num_tokens * INT32_BYTES + (num_tokens + written) * shape.kv_bytes_per_token, 0


_COUNT: dict[str, Callable[..., tuple[int, int]]] = {
    "segmented_attention": count_segmented_attention,
    "paged_decode_attention": count_paged_decode_attention,
    "kv_cache_update": count_kv_cache_update,
}


def cost_by_bucket(
    shape: AttentionShape,
    *,
    num_batched_tokens_buckets: Sequence[int],
    num_seqs_buckets: Sequence[int],
    context: int,
) -> list[tuple[int, KernelCost]]:
    """Return (bucket, cost) of each kernel for each bucket, with `context` tokens in the cache."""
    costs: list[tuple[int, KernelCost]] = []
    for bucket in num_batched_tokens_buckets:
        costs.extend((
            (bucket, cost("segmented_attention", shape, bucket=bucket, context=context)),
            (bucket, cost("kv_cache_update", shape, num_tokens=bucket)),
        ))
    for bucket in num_seqs_buckets:
        lens = [context] * bucket
        costs.extend((
            (bucket, cost(
                "paged_decode_attention", shape, context_lens=lens, max_context=context + 1
            )),
            (bucket, cost("kv_cache_update", shape, num_tokens=bucket)),
        ))
    return costs


def format_costs(costs: Sequence[tuple[int, KernelCost]]) -> str:
    """Lay `cost_by_bucket` out as a table."""
    lines = [
        f"{'kernel':<24}{'bucket':>7}{'MB':>10}{'GFLOP':>10}{'us':>10}  bound  (not measured)"
    ]
    for bucket, one in costs:
        lines.append(
            f"{one.kernel:<24}{bucket:>7}{one.bytes / 1e6:>10.2f}{one.flops / 1e9:>10.2f}"
            f"{one.seconds * 1e6:>10.1f}  {one.bound}"
        )
    return "\n".join(lines)
