"""Random cases of each kernel; NaN wherever a kernel must not look."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch

from neuron_sched_lab.kernels.check import TOLERANCE, relative_error
from neuron_sched_lab.kernels.dispatch import REFERENCE

NUM_CASES = 200
NAN = float("nan")
GROUPS = (1, 4, 8)
HEAD_DIMS = (64, 128)
PREFILL_BUCKETS = (16, 32, 64, 128, 256, 512)
DECODE_BUCKETS = (1, 2, 4, 8)
DTYPES = (torch.float32, torch.bfloat16)


class Case(NamedTuple):
    """Arguments of a kernel as in dispatch.Kernels, and which of the result rows are real."""

    args: tuple
    real: int
    about: str


class Draw:
    """Random numbers of one case; `index` also decides what must not be left to chance."""

    def __init__(self, index, dtype):
        self.rng = random.Random(index)
        self.generator = torch.Generator().manual_seed(index)
        self.dtype = dtype
        self.group = GROUPS[index % 3]
        self.head_dim = HEAD_DIMS[index // 3 % 2]
        self.kv_heads = 1 if self.group == 8 else self.rng.choice((1, 2, 3))
        self.heads = self.group * self.kv_heads
        self.block_size = self.rng.choice((8, 16, 32))
        self.scale = self.head_dim**-0.5

    def numbers(self, *shape):
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def active(self, rows, real):
        tensors = []
        for heads in (self.heads, self.kv_heads, self.kv_heads):
            x = self.numbers(rows, heads, self.head_dim)
            x[real:] = NAN
            tensors.append(x)
        return tensors

    def paged(self, lengths, max_blocks, more=0):
        """Caches with the given contexts, NaN elsewhere, and shuffled tables.

        more: tokens behind the context that have blocks already.
        """
        needed = [(length + more) // self.block_size + 1 for length in lengths]
        num_blocks = sum(needed) + self.rng.randint(1, 8)
        free = torch.randperm(num_blocks, generator=self.generator).tolist()
        shape = (num_blocks, self.kv_heads, self.block_size, self.head_dim)
        tables = torch.full((len(lengths), max_blocks), -1, dtype=torch.int32)
        used = torch.zeros(num_blocks, self.block_size, dtype=torch.bool)
        for row, length in enumerate(lengths):
            for column in range(min(needed[row], max_blocks)):
                tables[row, column] = block = free.pop()
                used[block, : max(0, length - column * self.block_size)] = True
        unused = ~used[:, None, :, None]
        caches = [self.numbers(*shape).masked_fill(unused, NAN) for _ in "kv"]
        return *caches, tables


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def prefill_case(index, dtype):
    draw = Draw(index, dtype)
    # Every bucket with every kind of prior context; the largest are slow, and drawn less often.
    bucket = PREFILL_BUCKETS[index // 5 % len(PREFILL_BUCKETS)]
    if bucket > 128 and index % 3:
        bucket //= 4
    segment = draw.block_size * draw.rng.choice((1, 2, 4, 8))
    prior = (
        0,
        draw.block_size,
        draw.rng.randint(1, 2 * segment),  # a partial segment, mostly within a block
        segment * draw.rng.randint(1, 2),
        draw.rng.randint(2 * segment, 5 * segment),
    )[index % 5]
    real = draw.rng.choice((bucket, draw.rng.randint(1, bucket)))
    max_blocks = (prior + real) // draw.block_size + draw.rng.randint(2, 9)
    q, k, v = draw.active(bucket, real)
    k_cache, v_cache, tables = draw.paged([prior], max_blocks, more=real)
    args = (q, k, v, k_cache, v_cache, tables[0], int32(prior), int32(real), segment, draw.scale)
    about = (
        f"prefill case {index} {dtype}: bucket {bucket}, {real} real, prior {prior}, "
        f"segment {segment}, block {draw.block_size}, heads {draw.heads}/{draw.kv_heads}, "
        f"d {draw.head_dim}"
    )
    return Case(args, real, about)


def decode_case(index, dtype):
    draw = Draw(index, dtype)
    bucket = DECODE_BUCKETS[index % 4]
    real = draw.rng.randint(bucket // 2 + 1, bucket)
    lengths = [
        draw.rng.choice((1, draw.block_size, draw.rng.randint(1, 60), draw.rng.randint(60, 400)))
        for _ in range(real)
    ]
    max_blocks = max(lengths) // draw.block_size + draw.rng.randint(1, 6)
    q, k, v = draw.active(bucket, real)
    k_cache, v_cache, tables = draw.paged(lengths, max_blocks)
    padding = bucket - real
    tables = torch.cat([tables, tables[:1].repeat(padding, 1)])
    args = (q, k, v, k_cache, v_cache, tables, int32(*lengths, *[0] * padding), draw.scale)
    about = (
        f"decode case {index} {dtype}: lengths {lengths}, padding {padding}, max_blocks "
        f"{max_blocks}, block {draw.block_size}, heads {draw.heads}/{draw.kv_heads}, "
        f"d {draw.head_dim}"
    )
    return Case(args, real, about)


def update_case(index, dtype):
    draw = Draw(index, dtype)
    num_tokens = draw.rng.choice((1, 2, 8, 64, 127, 128, 129, 256, 300))
    num_blocks = num_tokens // draw.block_size + draw.rng.randint(1, 8)
    shape = (num_blocks, draw.kv_heads, draw.block_size, draw.head_dim)
    k_cache, v_cache = draw.numbers(*shape), draw.numbers(*shape)
    slots = torch.randperm(num_blocks * draw.block_size, generator=draw.generator)[:num_tokens]
    skipped = torch.rand(num_tokens, generator=draw.generator) < draw.rng.choice((0, 0.3, 1))
    slots = slots.masked_fill(skipped, -1).int()
    k, v = (draw.numbers(num_tokens, draw.kv_heads, draw.head_dim) for _ in "kv")
    k[skipped], v[skipped] = NAN, NAN
    about = f"update case {index} {dtype}: {num_tokens} tokens, {int(skipped.sum())} skipped"
    return Case((k, v, k_cache, v_cache, slots), num_tokens, about)


def check_attention(case, kernel, reference):
    """Raise AssertionError unless the kernel agrees with the reference on the real rows."""
    expected = reference(*case.args[: REFERENCE_ARGS[reference]])
    found = kernel(*case.args)
    assert found.shape == expected.shape and found.dtype == expected.dtype, case.about
    error = relative_error(found[: case.real], expected[: case.real])
    assert error <= TOLERANCE[found.dtype], f"{case.about}: relative error {error:.2e}"
    return found


REFERENCE_ARGS = {REFERENCE.segmented_attention: 10, REFERENCE.paged_decode_attention: 8}
"""Arguments of the references; a kernel may take one more, its segment."""


def check_prefill(case, kernel):
    found = check_attention(case, kernel, REFERENCE.segmented_attention)
    assert found.isfinite().all(), f"{case.about}: a row of padding is not finite"


def check_decode(case, kernel):
    check_attention(case, kernel, REFERENCE.paged_decode_attention)


def check_update(case, kernel):
    """Raise AssertionError unless the caches are equal bit for bit."""
    k, v, k_cache, v_cache, slots = case.args
    expected = k_cache.clone(), v_cache.clone()
    REFERENCE.kv_cache_update(k, v, *expected, slots)
    kernel(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0]), case.about
    assert torch.equal(v_cache, expected[1]), case.about
