"""The torch references against dense attention, and that padding and unused slots are inert."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

from neuron_sched_lab.kernels.dispatch import (
    REFERENCE,
    get_kernels,
    reference_as_graph_nodes,
)
from neuron_sched_lab.kernels.reference.memo import remember_last
from neuron_sched_lab.kernels.reference.paged_decode_attention import group_rows
from neuron_sched_lab.kernels.reference.vllm_kernels import has_vllm_kernel
from tests.kernels.dense import PagedContext, dense_attention

SHAPES = [(4, 2, 32), (4, 4, 32), (4, 1, 64), (8, 2, 16)]  # heads, kv_heads, head_dim


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def run_prefill(context, q, k, v, num_tokens, *, segment, kernels=REFERENCE):
    return kernels.segmented_attention(
        q,
        k,
        v,
        context.k_cache,
        context.v_cache,
        context.block_tables(40)[0],
        int32(len(context.keys[0])),
        int32(num_tokens),
        segment,
        q.shape[-1] ** -0.5,
    )


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize(
    ("prior", "num_tokens", "bucket", "segment"),
    [
        (0, 1, 8, 32),
        (0, 100, 128, 32),
        (7, 20, 32, 32),
        (64, 64, 64, 32),
        (100, 33, 64, 32),
        (250, 100, 128, 64),
        (250, 100, 128, 4096),
    ],
)
def test_segmented_attention_is_attention(
    heads, kv_heads, head_dim, prior, num_tokens, bucket, segment
):
    context = PagedContext(
        [prior], kv_heads=kv_heads, head_dim=head_dim, block_size=16, num_blocks=40
    )
    q = context.draw(bucket, heads, head_dim)
    k, v = (context.draw(bucket, kv_heads, head_dim) for _ in "kv")
    out = run_prefill(context, q, k, v, num_tokens, segment=segment)
    expected = dense_attention(
        q[:num_tokens],
        torch.cat([context.keys[0], k[:num_tokens]]),
        torch.cat([context.values[0], v[:num_tokens]]),
        head_dim**-0.5,
    )
    assert out.shape == q.shape
    torch.testing.assert_close(out[:num_tokens], expected, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("segment", [32, 4096])
def test_padding_rows_of_a_chunk_change_no_bit(segment):
    context = PagedContext([75], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(64, n, 32) for n in (4, 2, 2))
    clean = run_prefill(context, q, k, v, 40, segment=segment)
    for tensor in (q, k, v):
        tensor[40:] = float("nan")
    for cache in (context.k_cache, context.v_cache):
        cache[torch.isnan(cache)] = 1e30  # what was NaN before
    poisoned = run_prefill(context, q, k, v, 40, segment=segment)
    assert torch.equal(clean[:40], poisoned[:40])
    assert torch.isfinite(poisoned).all()


def run_decode(context, q, k, v, lengths, *, padding=0, kernels=REFERENCE):
    tables = context.block_tables(40)
    return kernels.paged_decode_attention(
        q,
        k,
        v,
        context.k_cache,
        context.v_cache,
        torch.cat([tables, tables[:1].repeat(padding, 1)]),
        int32(*lengths, *[0] * padding),
        q.shape[-1] ** -0.5,
    )


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("lengths", [(0,), (1,), (15, 16, 17), (100, 3, 0, 64), (250, 250)])
def test_paged_decode_attention_is_attention(heads, kv_heads, head_dim, lengths):
    context = PagedContext(
        lengths, kv_heads=kv_heads, head_dim=head_dim, block_size=16, num_blocks=80
    )
    batch = len(lengths)
    q = context.draw(batch, heads, head_dim)
    k, v = (context.draw(batch, kv_heads, head_dim) for _ in "kv")
    out = run_decode(context, q, k, v, lengths)
    for row in range(batch):
        expected = dense_attention(
            q[row : row + 1],
            torch.cat([context.keys[row], k[row : row + 1]]),
            torch.cat([context.values[row], v[row : row + 1]]),
            head_dim**-0.5,
        )
        torch.testing.assert_close(out[row : row + 1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 40])
def test_what_unused_slots_hold_changes_no_bit_of_a_row_alone(length):
    context = PagedContext([length], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(1, n, 32) for n in (4, 2, 2))
    clean = run_decode(context, q, k, v, [length])
    for cache in (context.k_cache, context.v_cache):
        assert torch.isnan(cache).any()
        cache[torch.isnan(cache)] = 1e30
    assert torch.equal(clean, run_decode(context, q, k, v, [length]))


def test_padding_rows_of_a_batch_and_unused_slots_change_no_bit():
    lengths = (40, 5, 64)
    context = PagedContext(lengths, kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(4, n, 32) for n in (4, 2, 2))
    clean = run_decode(context, q, k, v, lengths, padding=1)
    for cache in (context.k_cache, context.v_cache):
        cache[torch.isnan(cache)] = 1e30
    for tensor in (q, k, v):
        tensor[3:] = -7.0
    poisoned = run_decode(context, q, k, v, lengths, padding=1)
    assert torch.equal(clean[:3], poisoned[:3])
    assert torch.isfinite(poisoned).all()
    # The row of padding saw itself alone.
    torch.testing.assert_close(poisoned[3], v[3].repeat_interleave(2, dim=0))


@pytest.mark.parametrize(
    ("num_columns", "min_gain", "expected"),
    [
        ([5], 4, [[0]]),
        ([3, 3, 3], 4, [[0, 1, 2]]),
        ([1, 60, 1, 1], 32, [[1], [0, 2, 3]]),
        ([1, 60, 1, 1], 1000, [[0, 1, 2, 3]]),
        ([30, 60, 31, 1], 30, [[1], [0, 2], [3]]),
        ([30, 60, 31, 1], 31, [[1], [0, 2, 3]]),
        ([2, 1], 4, [[0, 1]]),
    ],
)
def test_rows_are_grouped_where_it_saves_enough(num_columns, min_gain, expected):
    assert group_rows(num_columns, min_gain) == expected


def test_groups_change_nothing(monkeypatch):
    lengths = (250, 3, 100, 0, 90)
    context = PagedContext(lengths, kv_heads=2, head_dim=32, block_size=16, num_blocks=80)
    q, k, v = (context.draw(5, n, 32) for n in (4, 2, 2))
    together = run_decode(context, q, k, v, lengths)
    monkeypatch.setattr(sys.modules[group_rows.__module__], "MIN_GAIN_BYTES", 1)
    run_decode(context, q, k, v, (250, 3, 100, 0, 89))  # the last plan is remembered
    apart = run_decode(context, q, k, v, lengths)
    torch.testing.assert_close(apart, together, rtol=1e-5, atol=1e-6)


def test_a_row_without_any_block_is_harmless():
    context = PagedContext([20], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(2, n, 32) for n in (4, 2, 2))
    tables = torch.cat([context.block_tables(4), torch.full((1, 4), -1, dtype=torch.int32)])
    out = REFERENCE.paged_decode_attention(
        q, k, v, context.k_cache, context.v_cache, tables, int32(20, 0), 0.2
    )
    assert torch.isfinite(out).all()


def test_a_table_that_is_too_short_is_refused():
    context = PagedContext([20], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(1, n, 32) for n in (4, 2, 2))
    caches = context.k_cache, context.v_cache
    with pytest.raises(IndexError, match="20 tokens do not fit into 1 blocks"):
        REFERENCE.paged_decode_attention(
            q, k, v, *caches, context.block_tables(2)[:, :1], int32(20), 0.2
        )


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_it_does_not_matter_whether_the_cache_was_updated_first(phase):
    context = PagedContext([30], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    n = 2 if phase == "prefill" else 1  # block 1 has room for 2
    q, k, v = (context.draw(n, heads, 32) for heads in (4, 2, 2))

    def attend():
        if phase == "prefill":
            return run_prefill(context, q, k, v, n, segment=32)
        return run_decode(context, q, k, v, (30,))

    before = attend()
    slots = int32(*[context.blocks[0][1] * 16 + 14 + i for i in range(n)])
    REFERENCE.kv_cache_update(k, v, context.k_cache, context.v_cache, slots)
    assert torch.equal(before, attend())


def test_kv_cache_update_writes_slots_and_skips_padding():
    k_cache, v_cache = torch.zeros(4, 2, 8, 16), torch.zeros(4, 2, 8, 16)
    k, v = torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    REFERENCE.kv_cache_update(k, v, k_cache, v_cache, int32(9, 31, -1, 0, -1))
    for token, (block, offset) in {0: (1, 1), 1: (3, 7), 3: (0, 0)}.items():
        assert torch.equal(k_cache[block, :, offset], k[token])
        assert torch.equal(v_cache[block, :, offset], v[token])
        k_cache[block, :, offset] = v_cache[block, :, offset] = 0
    assert not k_cache.any()
    assert not v_cache.any()


def test_padding_behind_the_tokens_writes_nothing():
    """The order that the runner has, for which no token is picked out."""
    k_cache, v_cache = torch.zeros(4, 2, 8, 16), torch.zeros(4, 2, 8, 16)
    k, v = torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    REFERENCE.kv_cache_update(k, v, k_cache, v_cache, int32(31, 8, 1, -1, -1))
    for token, (block, offset) in enumerate([(3, 7), (1, 0), (0, 1)]):
        assert torch.equal(k_cache[block, :, offset], k[token])
        assert torch.equal(v_cache[block, :, offset], v[token])
        k_cache[block, :, offset] = v_cache[block, :, offset] = 0
    assert not k_cache.any()
    assert not v_cache.any()


def test_kv_cache_update_may_write_nothing():
    k_cache, v_cache = torch.zeros(2, 2, 8, 16), torch.zeros(2, 2, 8, 16)
    k = torch.randn(3, 2, 16)
    REFERENCE.kv_cache_update(k, k, k_cache, v_cache, int32(-1, -1, -1))
    assert not k_cache.any()


@pytest.mark.parametrize("rows", [1, 8, 15, 16, 17, 256])
def test_linear(rows):
    x, weight = torch.randn(rows, 96), torch.randn(40, 96)
    expected = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(REFERENCE.linear(x, weight), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 15, 16, 256])
def test_a_packed_weight_multiplies_the_same(rows, vllm_kernels):
    x, weight = torch.randn(rows, 96), torch.randn(40, 96)
    expected = (x.double() @ weight.double().T).float()
    packed = pack(weight)
    weight.zero_()  # a packed one is a copy
    torch.testing.assert_close(REFERENCE.linear(x, packed), expected, rtol=1e-4, atol=1e-4)


def test_packed_weights_multiply_in_threads(vllm_kernels):
    cases = [(torch.randn(128, 512), torch.randn(512, 512)) for _ in range(4)]
    packed = [pack(weight) for _, weight in cases]
    expected = [REFERENCE.linear(x, w) for (x, _), w in zip(cases, packed, strict=True)]

    def run(i):
        return all(
            torch.equal(REFERENCE.linear(cases[i][0], packed[i]), expected[i]) for _ in range(500)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


def test_a_packed_weight_refuses_what_its_kernel_would_not_notice(vllm_kernels):
    packed = pack(torch.randn(40, 96))
    with pytest.raises(ValueError, match=r"x: \[4, 200\] must have 96 columns"):
        REFERENCE.linear(torch.randn(4, 200), packed)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(packed)


def pack(weight):
    packed = REFERENCE.pack(weight)
    if isinstance(packed, torch.Tensor):
        pytest.skip("this vLLM has no kernel for packed weights")
    return packed


def test_only_float32_is_packed(vllm_kernels, monkeypatch):
    weight = torch.randn(40, 96)
    assert REFERENCE.pack(weight.bfloat16()).dtype == torch.bfloat16
    without_vllm_kernels(REFERENCE.pack, monkeypatch)
    assert REFERENCE.pack(weight) is weight


@pytest.fixture
def vllm_kernels():
    """Load vLLM's kernels, where they are installed."""
    with suppress(ImportError):
        import vllm._custom_ops  # noqa: F401
    has_vllm_kernel.cache_clear()


def without_vllm_kernels(function, monkeypatch):
    monkeypatch.setattr(sys.modules[function.__module__], "has_vllm_kernel", lambda name: False)


@pytest.mark.parametrize("rows", [1, 8, 256])
def test_rms_norm(rows, vllm_kernels, monkeypatch):
    """With vLLM's kernel, where this machine has it, and without."""
    x, weight = torch.randn(rows, 96) * 3, torch.randn(96)
    scale = (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    expected = (x.double() * scale * weight.double()).float()
    torch.testing.assert_close(REFERENCE.rms_norm(x, weight, 1e-5), expected, rtol=1e-4, atol=1e-5)
    without_vllm_kernels(REFERENCE.rms_norm, monkeypatch)
    torch.testing.assert_close(REFERENCE.rms_norm(x, weight, 1e-5), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 24, 32, 100, 128])
@pytest.mark.parametrize("tokens", [1, 7, 256])
def test_rotary(tokens, head_dim, dtype, vllm_kernels, monkeypatch):
    """Every head is a vector of complex numbers, turned by one angle each; values stay as is."""
    angles = torch.rand(300, head_dim // 2, dtype=torch.float64) * 100
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype)
    positions = torch.randint(0, 300, (tokens,), dtype=torch.int32)
    qkv = torch.randn(tokens, 8 * head_dim).to(dtype)
    values = qkv[:, 6 * head_dim :].clone()
    numbers = torch.complex(*qkv[:, : 6 * head_dim].double().view(tokens, 6, 2, -1).unbind(2))
    turned = numbers * torch.polar(torch.ones_like(angles), angles)[positions.long(), None]
    expected = torch.cat((turned.real, turned.imag), dim=-1).to(dtype)
    error = 1e-5 if dtype == torch.float32 else 5e-2
    for _ in range(2):
        qk = qkv.clone()[:, : 6 * head_dim]  # a part of every row, as the model has it
        found = REFERENCE.rotary(qk, positions, cos_sin)
        torch.testing.assert_close(found, expected, rtol=error, atol=error)
        assert torch.equal(qk._base[:, 6 * head_dim :], values)
        without_vllm_kernels(REFERENCE.rotary, monkeypatch)


def test_bfloat16_caches():
    context = PagedContext([40], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(1, n, 32) for n in (4, 2, 2))
    exact = run_decode(context, q, k, v, (40,))
    context.k_cache, context.v_cache = context.k_cache.bfloat16(), context.v_cache.bfloat16()
    out = run_decode(context, q.bfloat16(), k.bfloat16(), v.bfloat16(), (40,))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.05)


def test_graph_nodes_give_the_same_bits():
    nodes = reference_as_graph_nodes()
    context = PagedContext([40], kv_heads=2, head_dim=32, block_size=16, num_blocks=40)
    q, k, v = (context.draw(8, n, 32) for n in (4, 2, 2))
    eager = run_prefill(context, q, k, v, 8, segment=32)
    assert torch.equal(eager, run_prefill(context, q, k, v, 8, segment=32, kernels=nodes))
    eager = run_decode(context, q[:1], k[:1], v[:1], (40,))
    assert torch.equal(eager, run_decode(context, q[:1], k[:1], v[:1], (40,), kernels=nodes))


def test_remember_last_compares_by_value():
    calls = []

    @remember_last
    def double(x, factor):
        calls.append(x.clone())
        return x * factor

    x = torch.tensor([1, 2])
    assert double(x, 2).tolist() == [2, 4]
    assert double(x.clone(), 2).tolist() == [2, 4]
    assert len(calls) == 1
    x[0] = 5  # the same object, another value
    assert double(x, 2).tolist() == [10, 4]
    assert double(x, 3).tolist() == [15, 6]
    assert double(x[:1], 3).tolist() == [15]
    assert len(calls) == 4


def test_a_device_without_kernels_is_named():
    with pytest.raises(NotImplementedError, match="'abacus' has no kernels"):
        get_kernels("abacus")
