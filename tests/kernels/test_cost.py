"""The cost model is the emulator's count, and the roofline names the right bound."""

import random

import pytest
import torch

from neuron_sched_lab import nki_emulator as emulator
from neuron_sched_lab.kernels import nki_kernels
from neuron_sched_lab.kernels.check import find_nki
from neuron_sched_lab.kernels.cost import (
    AttentionShape,
    cost,
    cost_by_bucket,
    count_kv_cache_update,
    count_paged_decode_attention,
    count_segmented_attention,
    format_costs,
)
from neuron_sched_lab.kernels.nki_kernels.arguments import (
    decode_arguments,
    prefill_arguments,
    update_arguments,
)
from tests.kernels import cases

LLAMA_8B = AttentionShape(num_heads=32, num_kv_heads=8, head_dim=128)
needs_emulator = pytest.mark.skipif(find_nki() is None, reason="nki counts nothing")


def counted(kernel, args):
    with emulator.counting() as counts:
        emulator.simulate(kernel)(*args)
    return counts.hbm_bytes, counts.matmul_flops


def shape_of(q, k, k_cache, segment=1024):
    itemsize = q.element_size()
    return AttentionShape(
        q.shape[1], k.shape[1], q.shape[2], k_cache.shape[2], segment, itemsize, cores=1
    )


@needs_emulator
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_prefill_costs_what_the_emulator_counts(dtype):
    for index in range(30):
        args = cases.prefill_case(index, dtype).args
        q, k, _, k_cache, _, table, prior, _, segment, _ = args
        found = counted(nki_kernels.segmented_attention_kernel, prefill_arguments(*args))
        # In these cases a chunk's blocks are one more than its tokens need, when they end a block.
        blocks = int((table >= 0).sum())
        segment = min(segment, len(table) * k_cache.shape[2])
        shape = shape_of(q, k, k_cache, segment)
        tokens = blocks * shape.block_size - int(prior)
        assert found == count_segmented_attention(
            shape, bucket=q.shape[0], context=int(prior), num_tokens=tokens
        )


@needs_emulator
def test_a_prefill_of_two_passes_costs_what_the_emulator_counts():
    draw = cases.Draw(2, torch.float32)
    q, k, v = draw.active(1152, 1152)
    k_cache, v_cache, tables = draw.paged([300], 200, more=1151)
    real, prior = cases.int32(1152), cases.int32(300)
    args = (q, k, v, k_cache, v_cache, tables[0], prior, real, 128, 0.1)
    found = counted(nki_kernels.segmented_attention_kernel, prefill_arguments(*args))
    shape = shape_of(q, k, k_cache, 128)
    assert found == count_segmented_attention(shape, bucket=1152, context=300)


@needs_emulator
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_decode_costs_what_the_emulator_counts(dtype):
    for index in range(30):
        q, k, v, k_cache, v_cache, tables, lengths, scale = cases.decode_case(index, dtype).args
        args = decode_arguments(q, k, v, k_cache, v_cache, tables, lengths, scale)
        found = counted(nki_kernels.paged_decode_attention_kernel, args)
        shape = shape_of(q, k, k_cache)
        like_the_first = [int(length) or int(lengths[0]) for length in lengths]
        assert found == count_paged_decode_attention(
            shape, context_lens=like_the_first, max_context=tables.shape[1] * shape.block_size
        )


@needs_emulator
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_an_update_costs_what_the_emulator_counts(dtype):
    for index in range(30):
        k, v, k_cache, v_cache, slots = cases.update_case(index, dtype).args
        args = update_arguments(k, v, k_cache, v_cache, slots)
        found = counted(nki_kernels.kv_cache_update_kernel, args)
        assert found == count_kv_cache_update(
            shape_of(k, k, k_cache), num_tokens=len(slots), num_slots=int((slots >= 0).sum())
        )


def test_prefill_is_bound_by_flops_and_decode_by_bytes():
    prefill = cost("segmented_attention", LLAMA_8B, bucket=2048, context=0)
    decode = cost("paged_decode_attention", LLAMA_8B, context_lens=[4095] * 8, max_context=4096)
    update = cost("kv_cache_update", LLAMA_8B, num_tokens=128)
    assert (prefill.bound, decode.bound, update.bound) == ("flops", "bytes", "bytes")
    assert prefill.seconds == pytest.approx(prefill.flops / 158e12)
    # 8 rows of 4,096 tokens of 8 heads of 128 bfloat16 numbers, K and V, at 725 GB/s.
    assert decode.seconds == pytest.approx(8 * 4096 * 2 * 8 * 128 * 2 / 725e9, rel=0.01)


def test_heads_that_cannot_be_halved_take_twice_as_long():
    even = cost("kv_cache_update", AttentionShape(4, 2, 128), num_tokens=64)
    odd = cost("kv_cache_update", AttentionShape(4, 1, 128), num_tokens=64)
    assert odd.bytes == pytest.approx(even.bytes / 2, rel=0.01)
    assert odd.seconds == pytest.approx(even.seconds, rel=0.01)


def test_cost_never_falls_with_more_work():
    rng = random.Random(0)
    for _ in range(50):
        bucket, context = rng.choice((128, 512, 2048)), rng.randrange(0, 20_000)
        less = cost("segmented_attention", LLAMA_8B, bucket=bucket, context=context)
        more = cost("segmented_attention", LLAMA_8B, bucket=bucket, context=context + 999)
        assert more.seconds >= less.seconds and more.bytes >= less.bytes


def test_a_table_has_each_kernel_of_each_bucket():
    table = cost_by_bucket(
        LLAMA_8B, num_batched_tokens_buckets=[128, 256], num_seqs_buckets=[1, 2], context=1000
    )
    assert [(bucket, one.kernel) for bucket, one in table] == [
        (128, "segmented_attention"),
        (128, "kv_cache_update"),
        (256, "segmented_attention"),
        (256, "kv_cache_update"),
        (1, "paged_decode_attention"),
        (1, "kv_cache_update"),
        (2, "paged_decode_attention"),
        (2, "kv_cache_update"),
    ]
    text = format_costs(table)
    assert "not measured" in text
    assert len(text.splitlines()) == 9


def test_unknown_kernels_and_formats_are_named():
    with pytest.raises(ValueError, match="kernel: 'softmax' is unknown"):
        cost("softmax", LLAMA_8B)
    with pytest.raises(ValueError, match="itemsize: 8 must be one of"):
        cost("kv_cache_update", AttentionShape(1, 1, 64, itemsize=8), num_tokens=1)
