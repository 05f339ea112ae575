"""Metrics, against the same figures worked out from a Trace the slow way."""

import numpy as np
import pytest

from neuron_sched_lab.reports.metrics_plot import plot_latency, plot_load
from neuron_sched_lab.simulation.cost_model import FunctionCostModel
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.trace.metrics import SLO, Distribution, Metrics
from neuron_sched_lab.trace.run_columns import requests_frame, steps_frame
from neuron_sched_lab.trace.run_log import RunLog
from neuron_sched_lab.trace.trace import Trace
from neuron_sched_lab.workloads.generators import poisson
from neuron_sched_lab.workloads.workload import Workload

COST = FunctionCostModel(lambda n, context: 0.01 + 1e-4 * n, lambda rows, context: 0.02)
SMALL = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 512}


@pytest.fixture(scope="module")
def result():
    return simulate(poisson(8, 60, prompt=(100, 0.5), output=(8, 1.0)), cost_model=COST, **SMALL)


def token_times(result):
    times = {request_id: [] for request_id in result.trace.requests}
    for record, end in zip(result.trace, result.log.step_end, strict=True):
        for scheduled in record.scheduled:
            times[scheduled.request_id] += [end] * len(scheduled.new_token_ids)
    return times


def assert_distribution(found, values):
    values = np.array(values)
    expected = [*np.percentile(values, [50, 90, 99]), values.mean(), values.max(), len(values)]
    assert list(found) == pytest.approx(expected, rel=1e-12)


def test_latencies(result):
    metrics, times = result.metrics(), token_times(result)
    arrival = dict(zip(result.log.request_ids, result.log.arrival, strict=True))
    assert_distribution(metrics.ttft, [t[0] - arrival[r] for r, t in times.items()])
    assert_distribution(metrics.e2e, [t[-1] - arrival[r] for r, t in times.items()])
    several = [t for t in times.values() if len(t) > 1]
    assert 0 < len(several) < len(times)
    assert_distribution(metrics.tpot, [(t[-1] - t[0]) / (len(t) - 1) for t in several])
    gaps = np.concatenate([np.diff(t) for t in several])
    assert_distribution(metrics.itl, gaps)
    # Without prefills in between a token takes a decode step, 0.02 s.
    stalls = gaps[gaps > 0.02 + 1e-9] - 0.02
    assert_distribution(metrics.stall, stalls)
    assert metrics.stalled_share == pytest.approx(len(stalls) / len(gaps))


def test_counts_are_those_of_the_trace_summary(result):
    metrics, summary = result.metrics(), result.trace.summary()
    assert metrics.steps == summary.steps
    assert metrics.padding_share == pytest.approx(summary.padded_share)
    assert metrics.batch_fill == pytest.approx(summary.decode_fill)
    assert metrics.num_shapes == len(summary.shapes)
    assert metrics.num_preemptions == summary.num_preemptions == 0


def test_throughput_and_quantities_by_time(result):
    metrics, log = result.metrics(), result.log
    num_tokens = sum(r.max_tokens for r in result.trace.requests.values())
    makespan = log.step_end[-1] - log.arrival[0]
    assert metrics.makespan == pytest.approx(makespan)
    assert metrics.output_tokens_per_second == pytest.approx(num_tokens / makespan)
    assert metrics.requests_per_second == pytest.approx(60 / makespan)
    seconds = np.array([r.model_seconds for r in result.trace])
    used = np.array([r.kv_blocks_used / r.kv_blocks_total for r in result.trace])
    running = np.array([len(r.running) for r in result.trace])
    assert metrics.kv_use.mean == pytest.approx(np.average(used, weights=seconds))
    assert metrics.kv_use.max == pytest.approx(used.max())
    assert metrics.running.mean == pytest.approx(np.average(running, weights=seconds))


def test_goodput_counts_the_requests_that_met_the_slo(result):
    frame = requests_frame(result.log)
    slo = SLO(ttft=float(frame["ttft"].median()), tpot=0.05)
    good = (frame["ttft"] <= slo.ttft) & (frame["tpot"].fillna(0) <= slo.tpot)
    metrics = result.metrics(slo)
    assert 0 < good.sum() < 60
    assert metrics.good_share == pytest.approx(good.mean())
    assert metrics.goodput == pytest.approx(good.sum() / metrics.makespan)
    assert result.metrics().good_share == 1
    assert result.metrics(SLO(e2e=0.0)).goodput == 0


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_are_numpys(seed):
    random = np.random.default_rng(seed)
    values = random.integers(0, 9, size=random.integers(1, 12)) / 7
    counts = random.integers(0, 5, size=len(values))
    counts[0] += 1
    assert_distribution(Distribution.of(values, counts), np.repeat(values, counts))


def test_a_quantity_over_time_is_weighted_by_it():
    found = Distribution.by_time(np.array([5.0, 1.0]), np.array([1.0, 3.0]))
    assert (found.p50, found.p99, found.mean, found.max) == (1.0, 5.0, 2.0, 5.0)


def test_frames_have_a_row_for_each_request_and_step(result):
    requests, steps = requests_frame(result.log), steps_frame(result.log)
    assert len(requests) == 60 and len(steps) == len(result.trace)
    assert list(steps["tokens"]) == [r.num_tokens for r in result.trace]
    assert list(steps["phase"]) == [r.phase for r in result.trace]
    assert (steps["end"] - steps["start"]).min() > 0
    assert not requests["e2e"].isna().any()


def test_a_saved_trace_has_metrics_too(result, tmp_path):
    result.trace.save(tmp_path / "t.jsonl")
    loaded = RunLog.from_trace(Trace.load(tmp_path / "t.jsonl"))
    metrics, original = Metrics.of(loaded), result.metrics()
    assert metrics.steps == original.steps
    assert metrics.num_finished == 60
    assert metrics.padding_share == pytest.approx(original.padding_share)
    # Pauses between steps are not in a trace; the work is.
    busy = sum(r.model_seconds for r in result.trace)
    assert metrics.makespan == pytest.approx(busy)


def test_figures_as_numbers_and_words(result):
    metrics = result.metrics()
    frame = metrics.to_frame()
    assert frame.shape[0] == 1
    assert frame["ttft_p90"].iloc[0] == metrics.ttft.p90
    assert frame["decode_steps"].iloc[0] == metrics.steps["decode"]
    assert "60 of 60 finished" in str(metrics)
    assert str(metrics).count("\n") == len(metrics.rows()) - 1


def test_a_run_of_nothing():
    metrics = simulate(Workload("none", ()), cost_model=COST, **SMALL).metrics()
    assert metrics.num_requests == metrics.num_finished == 0
    assert metrics.makespan == metrics.ttft.p50 == metrics.padding_share == 0


def test_plots_answer_in_words_as_well(result):
    plot = plot_latency({"a": result.log, "b": result.log}, "ttft")
    p50 = result.metrics().ttft.p50
    assert f"a: half within {p50:.3g} s" in plot.alt
    assert [trace.name for trace in plot.figure.data] == ["a", "b"]
    assert len({trace.line.dash for trace in plot.figure.data}) == 2
    load = plot_load(result.log)
    assert "At most 4 run" in load.alt
    with pytest.raises(ValueError, match="latency: 'itl' must be one of ttft"):
        plot_latency({}, "itl")
