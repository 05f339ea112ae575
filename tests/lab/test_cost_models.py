"""Cost models: the roofline against published latencies, measured tables, calibration's lines."""

import random

import pytest

from neuron_sched_lab.lab.calibration import fit_line
from neuron_sched_lab.lab.cost_model import CostModel, FunctionCostModel, Line, MeasuredCostModel
from neuron_sched_lab.lab.roofline import MODELS, RooflineCostModel
from neuron_sched_lab.lab.simulation import simulate
from neuron_sched_lab.lab.workload_generators import closed_loop

MARGIN = 0.15
"""How far a published figure may be from the simulated one."""


def published(model, tp, max_model_len, users, prompt, output, buckets, **milliseconds):
    return pytest.param(
        RooflineCostModel(model, tp_degree=tp, max_model_len=max_model_len),
        closed_loop(users, 12 * users, think_seconds=0.005, prompt=prompt, output=output),
        {
            "max_num_seqs": users,
            "max_model_len": max_model_len,
            "max_num_batched_tokens": buckets[-1],
            "neuron_config": {"num_batched_tokens_buckets": buckets},
        },
        milliseconds,
        id=model,
    )


@pytest.mark.parametrize(
    ("cost_model", "workload", "settings", "milliseconds"),
    [
        # vLLM Neuron, EAGLE3 tutorial for Llama 3.1, baseline without speculation.
        published(
            "llama-3.1-8b", 8, 2048, 2, 512, 128, [128, 256, 512, 1024, 2048],
            ttft=51.07, tpot=10.52,
        ),
        # vLLM Neuron, EAGLE3 tutorial for gpt-oss, baseline.
        published("gpt-oss-120b", 16, 768, 1, 512, 128, [512], ttft=252.33, tpot=7.00),
        # The stack before (NxD Inference), Llama-3.3-70B tutorial: same shape as 3.1.
        published("llama-3.1-70b", 64, 12288, 1, 10000, 200, [10240, 12288], ttft=814, tpot=19.6),
    ],
)  # fmt: skip
def test_published_latencies(cost_model, workload, settings, milliseconds):
    metrics = simulate(workload, cost_model=cost_model, **settings).metrics()
    for name, expected in milliseconds.items():
        assert getattr(metrics, name).p50 * 1000 == pytest.approx(expected, rel=MARGIN), name


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
