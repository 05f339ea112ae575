"""The NKI kernels against the torch references, under nki.simulate or the emulator."""

import pytest
import torch

from neuron_sched_lab import nki_emulator as emulator
from neuron_sched_lab.kernels import nki_kernels
from neuron_sched_lab.kernels.dispatch import get_kernels
from neuron_sched_lab.kernels.nki_kernels.arguments import (
    decode_arguments,
    prefill_arguments,
    update_arguments,
)
from neuron_sched_lab.nki_emulator import language as nl
from tests.kernels import cases
from tests.kernels.planted import copy_kernels

KERNELS = get_kernels("nki-sim")
STEP = 20
FIRST_CASES = range(0, cases.NUM_CASES, STEP)

needs_emulator = pytest.mark.skipif(
    nki_kernels.HAS_NKI, reason="nki is installed, the kernels use it"
)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("first", FIRST_CASES)
def test_segmented_attention(first, dtype):
    for index in range(first, first + STEP):
        cases.check_prefill(cases.prefill_case(index, dtype), KERNELS.segmented_attention)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("first", FIRST_CASES)
def test_paged_decode_attention(first, dtype):
    for index in range(first, first + STEP):
        case = cases.decode_case(index, dtype)
        if index % 2:  # in segments of 64, so that a context has several
            case = case._replace(args=(*case.args, 64))
        cases.check_decode(case, KERNELS.paged_decode_attention)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("first", FIRST_CASES)
def test_kv_cache_update(first, dtype):
    for index in range(first, first + STEP):
        cases.check_update(cases.update_case(index, dtype), KERNELS.kv_cache_update)


def test_cases_cover_what_they_promise():
    seen = {name: set() for name in ("bucket", "group", "head_dim", "prior", "padding")}
    for index in range(cases.NUM_CASES):
        q, k, _, k_cache, _, table, prior, real, segment, _ = cases.prefill_case(
            index, torch.float32
        ).args
        block_size, prior = k_cache.shape[2], int(prior)
        seen["bucket"].add(q.shape[0])
        seen["group"].add(q.shape[1] // k.shape[1])
        seen["head_dim"].add(q.shape[2])
        seen["padding"].add(int(real) < q.shape[0])
        kinds = {
            "none": prior == 0,
            "one block": prior == block_size,
            "partial segment": prior % segment > 0,
            "partial block": prior % block_size > 0,
            "whole segments": prior > 0 and prior % segment == 0,
            "many segments": prior > 2 * segment,
        }
        seen["prior"].update(kind for kind, is_so in kinds.items() if is_so)
        assert (table == -1).any()
        assert k_cache.isnan().any()
    assert seen == {
        "bucket": set(cases.PREFILL_BUCKETS),
        "group": set(cases.GROUPS),
        "head_dim": set(cases.HEAD_DIMS),
        "prior": set(kinds),
        "padding": {True, False},
    }


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_a_bucket_beyond_one_pass_and_a_segment_of_several_tiles(dtype):
    # GQA 8 keeps 8 query tiles on chip: 1,152 rows take two passes. A segment of 1,024 tokens in
    # blocks of 4 is gathered in two tiles of 128 rows.
    draw = cases.Draw(2, dtype)
    draw.block_size = 4
    bucket, real, prior = 1152, 1100, 1500
    q, k, v = draw.active(bucket, real)
    k_cache, v_cache, tables = draw.paged([prior], 700, more=real)
    args = (q, k, v, k_cache, v_cache, tables[0], cases.int32(prior), cases.int32(real), 1024, 0.1)
    cases.check_prefill(cases.Case(args, real, "two passes"), KERNELS.segmented_attention)


@pytest.mark.parametrize("num_tokens", [1, 60])
def test_padding_and_unused_slots_change_no_bit(num_tokens):
    draw = cases.Draw(4, torch.float32)
    q, k, v = draw.active(64, num_tokens)
    k_cache, v_cache, tables = draw.paged([75], 40)

    def run():
        prior, real = cases.int32(75), cases.int32(num_tokens)
        return KERNELS.segmented_attention(
            q, k, v, k_cache, v_cache, tables[0], prior, real, 32, 0.1
        )

    poisoned = run()
    for tensor in (q, k, v, k_cache, v_cache):
        tensor[tensor.isnan()] = 3.0
    assert torch.equal(run()[:num_tokens], poisoned[:num_tokens])


def test_a_row_of_decode_sees_no_other_row():
    case = cases.decode_case(3, torch.float32)
    together = KERNELS.paged_decode_attention(*case.args)
    q, k, v, k_cache, v_cache, tables, lengths, scale = case.args
    for row in range(case.real):
        one = slice(row, row + 1)
        alone = KERNELS.paged_decode_attention(
            q[one], k[one], v[one], k_cache, v_cache, tables[one], lengths[one], scale
        )
        assert torch.equal(alone[0], together[row])


@needs_emulator
@pytest.mark.parametrize("index", [5, 8, 9, 13])
def test_both_cores_of_a_logical_core_give_the_same_bits(index):
    for case, kernel, arguments in (
        (cases.prefill_case, nki_kernels.segmented_attention_kernel, prefill_arguments),
        (cases.decode_case, nki_kernels.paged_decode_attention_kernel, decode_arguments),
    ):
        args = arguments(*case(index, torch.float32).args)
        one, two = (emulator.simulate(kernel[grid])(*args) for grid in (1, 2))
        assert torch.equal(one.nan_to_num(), two.nan_to_num())
    k, v, k_cache, v_cache, slots = cases.update_case(index, torch.float32).args
    caches = [(k_cache.clone(), v_cache.clone()) for _ in range(2)]
    for grid, cache in enumerate(caches, start=1):
        kernel = emulator.simulate(nki_kernels.kv_cache_update_kernel[grid])
        kernel(*update_arguments(k, v, *cache, slots))
    assert torch.equal(caches[0][0], caches[1][0])
    assert torch.equal(caches[0][1], caches[1][1])


@needs_emulator
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_the_largest_segment_and_a_full_pass_fit_on_chip(dtype):
    # GQA 8: 8 query tiles of 8 heads, 64 in all. SBUF is checked at every allocation.
    draw = cases.Draw(5, dtype)
    draw.block_size = 32
    q, k, v = draw.active(1024, 1024)
    k_cache, v_cache, tables = draw.paged([100], 200, more=1024)
    args = (q, k, v, k_cache, v_cache, tables[0], cases.int32(100), cases.int32(1024), 4096, 0.1)
    assert (draw.group, draw.head_dim) == (8, 128)
    with emulator.counting() as counts:
        cases.check_prefill(cases.Case(args, 1024, "full"), KERNELS.segmented_attention)
    assert 150_000 < counts.peak_sbuf_bytes <= nl.tile_size.sbuf_fmax_bytes


@needs_emulator
def test_two_cores_share_the_work():
    args = decode_arguments(
        *next(
            case.args
            for case in (cases.decode_case(i, torch.float32) for i in range(20))
            if case.args[1].shape[1] == 2
        )
    )
    with emulator.counting() as one:
        emulator.simulate(nki_kernels.paged_decode_attention_kernel)(*args)
    with emulator.counting() as two:
        emulator.simulate(nki_kernels.paged_decode_attention_kernel[2])(*args)
    assert two.matmul_flops == one.matmul_flops
    assert two.hbm_bytes < 1.5 * one.hbm_bytes


@needs_emulator
def test_blocks_behind_the_context_move_no_byte():
    draw = cases.Draw(1, torch.float32)
    q, k, v = draw.active(1, 1)
    k_cache, v_cache, short = draw.paged([20], 2)
    long = torch.cat([short, torch.full((1, 30), -1, dtype=torch.int32)], dim=1)
    moved = []
    for tables in (short, long):
        args = decode_arguments(q, k, v, k_cache, v_cache, tables, cases.int32(20), 0.1)
        with emulator.counting() as counts:
            emulator.simulate(nki_kernels.paged_decode_attention_kernel)(*args)
        moved.append(counts)
    row_bytes = draw.kv_heads * draw.block_size * draw.head_dim * 4
    # What grows are the block ids: 4 bytes for each row of a block.
    assert moved[1].hbm_bytes - moved[0].hbm_bytes < row_bytes
    assert sum(dma.skipped_rows for dma in moved[1].dmas) > 0


@pytest.mark.skipif(not nki_kernels.HAS_NKI, reason="nki is not installed")
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_the_emulator_agrees_with_nki_simulate(tmp_path, monkeypatch, dtype):
    emulated = copy_kernels(tmp_path, monkeypatch)
    for index in range(12):
        for name, make in (
            ("segmented_attention", cases.prefill_case),
            ("paged_decode_attention", cases.decode_case),
        ):
            case = make(index, dtype)
            found = getattr(KERNELS, name)(*case.args)[: case.real]
            expected = getattr(emulated, name)(*case.args)[: case.real]
            error = cases.relative_error(found, expected)
            assert error <= cases.TOLERANCE[dtype], case.about


BAD_ARGUMENTS = [
    ({"head_dim": 160}, "head_dim: 160 must be at most 128"),
    ({"block_size": 12}, "block_size: 12 must be a power of two"),
    ({"dtype": torch.float16}, "dtype: the NKI kernels take float32 or bfloat16"),
    ({"segment": 24}, "kv_segment_size: 24 must be a multiple of block_size = 16"),
    ({"segment": 8192, "blocks": 512}, "kv_segment_size: 8192 must be at most 4096"),
    ({"heads": 256}, "num_attention_heads: 256 must be at most 128"),
]


@pytest.mark.parametrize(("change", "message"), BAD_ARGUMENTS)
def test_arguments_that_the_kernels_do_not_take(change, message):
    size = {"head_dim": 64, "block_size": 16, "dtype": torch.float32, "segment": 32, "heads": 2}
    size |= {"blocks": 2} | change
    q = torch.zeros(4, size["heads"], size["head_dim"], dtype=size["dtype"])
    k = q[:, :2]
    cache = torch.zeros(3, 2, size["block_size"], size["head_dim"], dtype=size["dtype"])
    one, table = cases.int32(1), cases.int32(*range(size["blocks"]))
    tensors = (q, k, k, cache, cache)
    if "heads" in change:
        make, args = decode_arguments, (*tensors, table.expand(4, 2), one.expand(4), 1.0)
    else:
        make, args = prefill_arguments, (*tensors, table, one, one, size["segment"], 1.0)
    with pytest.raises(ValueError) as error:
        make(*args)
    assert message in str(error.value)
