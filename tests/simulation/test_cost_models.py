"""Cost models: the roofline against published latencies, measured tables, calibration's lines."""

import random

import pytest
import torch

from benchmarks.fidelity import MARGIN, PUBLISHED, simulate_published
from neuron_sched_lab import nki_emulator as emulator
from neuron_sched_lab.kernels import cost as kernel_cost
from neuron_sched_lab.kernels import nki_kernels
from neuron_sched_lab.kernels.check import find_nki
from neuron_sched_lab.kernels.nki_kernels.arguments import decode_arguments, prefill_arguments
from neuron_sched_lab.simulation import roofline as rates
from neuron_sched_lab.simulation.calibration import fit_line
from neuron_sched_lab.simulation.cost_model import (
    CostModel,
    FunctionCostModel,
    Line,
    MeasuredCostModel,
)
from neuron_sched_lab.simulation.roofline import MODELS, ModelShape, RooflineCostModel
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.workloads.generators import closed_loop
from tests.kernels import cases


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row.fitted], ids=lambda row: row.model)
def test_published_latencies(row):
    metrics = simulate_published(row)
    for name in ("ttft", "tpot"):
        simulated = getattr(metrics, name).p50 * 1000
        assert simulated == pytest.approx(getattr(row, name), rel=MARGIN), name


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.6),
        ("llama-3.1-405b", 405.8),
        ("gpt-oss-20b", 20.9),
        ("gpt-oss-120b", 116.8),
    ],
)
def test_shapes_have_the_published_number_of_weights(model, billions):
    m = MODELS[model]
    layers = m.num_layers * (m.attention_params + m.num_experts * m.expert_params)
    # The embedding has the shape of the output projection.
    assert (layers + 2 * m.head_params) / 1e9 == pytest.approx(billions, rel=0.01)


def roofline(**changes):
    return RooflineCostModel(
        **{"model": "llama-3.1-8b", "tp_degree": 8, "max_model_len": 8192, **changes}
    )


def test_more_work_takes_longer_and_more_cores_shorter():
    model = roofline(decode_context_length_buckets=(1024, 2048))
    assert model.prefill_seconds(512, 0) < model.prefill_seconds(1024, 0)
    assert model.prefill_seconds(512, 0) < model.prefill_seconds(512, 4096)
    assert model.decode_seconds(1, 100) < model.decode_seconds(32, 100)
    assert roofline(tp_degree=16).prefill_seconds(512, 0) < model.prefill_seconds(512, 0)
    assert roofline(lnc=1).decode_seconds(4, 100) > roofline(lnc=2).decode_seconds(4, 100)


def test_a_decode_reads_the_whole_range_that_its_graph_is_shaped_for():
    whole = roofline()
    assert whole.decode_seconds(8, 1) == whole.decode_seconds(8, 8192)
    laddered = roofline(decode_context_length_buckets=(1024, 2048))
    assert laddered.decode_seconds(8, 1) == laddered.decode_seconds(8, 1024)
    assert laddered.decode_seconds(8, 1024) < laddered.decode_seconds(8, 1025)
    assert laddered.decode_seconds(8, 2049) == whole.decode_seconds(8, 1)


def test_rates_are_those_of_the_kernels_cost():
    assert kernel_cost.FLOPS_PER_SECOND[2] == rates.PEAK_FLOPS_PER_CORE
    assert rates.HBM_BYTES_PER_SECOND_PER_CORE == kernel_cost.HBM_BYTES_PER_SECOND


KERNELS = {
    "segmented_attention": ("ttft", "tpot"),
    "paged_decode_attention": ("tpot", "ttft"),
    "kv_cache_update": ("ttft", None),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_simulated_figures_change_when_a_kernel_costs_more(kernel, monkeypatch):
    """By as much, and only those of the phase that the kernel is for."""
    settings = {"max_num_seqs": 1, "max_num_batched_tokens": 512, "max_model_len": 2048}
    workload = closed_loop(1, 3, prompt=500, output=10)

    def figures():
        cost_model = roofline(max_model_len=2048)
        return simulate(workload, cost_model=cost_model, **settings).metrics().as_dict()

    before, count = figures(), kernel_cost._COUNT[kernel]

    def costs_more(*args, **sizes):
        num_bytes, flops = count(*args, **sizes)
        return num_bytes + 10**9, flops

    monkeypatch.setitem(kernel_cost._COUNT, kernel, costs_more)
    after = figures()
    # In 32 layers; one KV head on each logical core, so only one physical core's rate.
    added = 32 * 10**9 / (rates.MBU * rates.HBM_BYTES_PER_SECOND_PER_CORE)
    changed, unchanged = KERNELS[kernel]
    assert after[f"{changed}_p50"] - before[f"{changed}_p50"] == pytest.approx(added, rel=0.05)
    if unchanged is not None:
        assert after[f"{unchanged}_p50"] == pytest.approx(before[f"{unchanged}_p50"])


def reached(kernel, args):
    """Seconds that one physical core would take for what the emulator counts."""
    with emulator.counting() as counts:
        emulator.simulate(kernel)(*args)
    return max(
        counts.hbm_bytes / (rates.MBU * rates.HBM_BYTES_PER_SECOND_PER_CORE),
        counts.matmul_flops / (rates.MFU * rates.PEAK_FLOPS_PER_CORE),
    )


def one_layer(draw, **settings):
    shape = ModelShape(1, 512, draw.heads, draw.kv_heads, draw.head_dim, 1024, 1000)
    return RooflineCostModel(shape, 1, 4096, lnc=1, block_size=draw.block_size, **settings)


@pytest.mark.skipif(find_nki() is None, reason="nki counts nothing")
@pytest.mark.parametrize("bucket", [32, 160])
def test_a_prefill_gets_longer_by_what_the_emulator_counts(bucket):
    """Between two contexts nothing differs but what the kernel moves and multiplies."""
    expected = {}
    for context in (128, 512):
        draw = cases.Draw(4, torch.bfloat16)
        assert draw.head_dim == 128
        model = one_layer(draw, kv_segment_size=256)
        q, k, v = draw.active(bucket, bucket)
        k_cache, v_cache, tables = draw.paged([context], 100, more=bucket - 1)
        lengths = cases.int32(context), cases.int32(bucket)
        args = prefill_arguments(q, k, v, k_cache, v_cache, tables[0], *lengths, 256, draw.scale)
        expected[context] = reached(nki_kernels.segmented_attention_kernel, args)
    longer = model.prefill_seconds(bucket, 512) - model.prefill_seconds(bucket, 128)
    assert longer == pytest.approx(expected[512] - expected[128], rel=1e-6)


@pytest.mark.skipif(find_nki() is None, reason="nki counts nothing")
@pytest.mark.parametrize("rows", [1, 4])
def test_a_decode_gets_longer_by_what_the_emulator_counts(rows):
    expected = {}
    for kv_range in (128, 512):
        draw = cases.Draw(4, torch.bfloat16)
        model = one_layer(draw, decode_context_length_buckets=(128, 512))
        q, k, v = draw.active(rows, rows)
        blocks = kv_range // draw.block_size
        k_cache, v_cache, tables = draw.paged([kv_range - 1] * rows, blocks)
        lengths = cases.int32(*[kv_range - 1] * rows)
        args = decode_arguments(q, k, v, k_cache, v_cache, tables, lengths, draw.scale)
        expected[kv_range] = reached(nki_kernels.paged_decode_attention_kernel, args)
    longer = model.decode_seconds(rows, 512) - model.decode_seconds(rows, 128)
    assert longer == pytest.approx(expected[512] - expected[128], rel=1e-6)


def test_a_mixture_reads_more_experts_the_more_rows_it_has():
    model = roofline(model="gpt-oss-20b")
    steps = [model.decode_seconds(rows, 1) for rows in (1, 2, 4, 8)]
    assert steps == sorted(steps)
    dense = roofline()
    assert steps[3] / steps[0] > dense.decode_seconds(8, 1) / dense.decode_seconds(1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama-9"}, "model: 'llama-9' is none of llama-3.1-8b"),
        ({"lnc": 3}, "lnc: 3 must be 1 or 2"),
        ({"kv_segment_size": 100}, "kv_segment_size: 100 must be a multiple of block_size = 32"),
        ({"tp_degree": 0}, "tp_degree: 0 must be at least 1"),
        ({"decode_context_length_buckets": (2048, 1024)}, "must ascend and stay below"),
        ({"decode_context_length_buckets": (8192,)}, "must ascend and stay below max_model_len"),
    ],
)
def test_a_bad_setting_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        roofline(**changes)


def test_the_kv_cache_that_fits():
    # 30 % of 8 logical cores of 24 GiB, 128 KiB a token.
    assert roofline().kv_cache_tokens() == int(0.3 * 8 * 24 * 2**30 / 2**17)
    # Sixteen cores hold the eight KV heads twice.
    assert roofline(tp_degree=16).kv_cache_tokens() == roofline().kv_cache_tokens()


def test_a_measured_table_is_looked_up_and_interpolated():
    model = MeasuredCostModel(
        prefill={256: Line(0.3), 128: Line(0.1, 1e-3)}, decode={4: Line(0.02)}
    )
    assert model.prefill_seconds(128, 0) == 0.1
    assert model.prefill_seconds(128, 100) == pytest.approx(0.2)
    assert model.prefill_seconds(192, 0) == pytest.approx(0.2)
    assert model.prefill_seconds(64, 0) == 0.1
    assert model.prefill_seconds(512, 0) == pytest.approx(0.6)
    assert model.decode_seconds(8, 5) == pytest.approx(0.04)
    with pytest.raises(ValueError, match="decode: the table is empty"):
        MeasuredCostModel(prefill={1: Line(1)}, decode={})


def test_all_are_cost_models():
    models = [
        roofline(),
        MeasuredCostModel({1: Line(1)}, {1: Line(1)}),
        FunctionCostModel(max, min),
    ]
    assert all(isinstance(model, CostModel) for model in models)


def test_a_line_is_found_in_noise_with_slow_steps():
    draw = random.Random(1)
    steps = [(c, 0.01 + 2e-5 * c + draw.gauss(0, 3e-4)) for c in range(0, 1000, 5)]
    line = fit_line(steps)
    assert line.per_context_token == pytest.approx(2e-5, rel=0.05)
    assert line.base == pytest.approx(0.01, rel=0.05)
    # A tenth of the steps ten times as slow: the slope stays, the mean is kept.
    slowed = [(c, s * 10 if draw.random() < 0.1 else s) for c, s in steps]
    line = fit_line(slowed)
    assert line.per_context_token == pytest.approx(2e-5, rel=0.1)
    total = sum(line.at(c) for c, _ in slowed)
    assert total == pytest.approx(sum(s for _, s in slowed))


def test_few_steps_or_falling_times_give_a_flat_line():
    assert fit_line([(1, 2.0), (2, 4.0)]) == Line(3.0, 0.0)
    assert fit_line([(c, 1 - c / 100) for c in range(50)]).per_context_token == 0
    assert fit_line([(7, 1.0)] * 20) == Line(1.0, 0.0)
