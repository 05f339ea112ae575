"""Experiments: each is one call with an answer, a plot, a table and an alternative text."""

import re

import pytest

from neuron_sched_lab import experiments
from neuron_sched_lab.experiments import kv_policies, ladders, pacing, policies
from neuron_sched_lab.scheduler import HoldbackScheduler, NeuronScheduler
from neuron_sched_lab.simulation.cost_model import FunctionCostModel
from neuron_sched_lab.simulation.declared_max_tokens import declaring
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.workloads.generators import bursty, poisson
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload

COST = FunctionCostModel(lambda bucket, context: 2e-4 * bucket, lambda rows, context: 0.01)
SMALL = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "cost_model": COST,
}
BUSY = poisson(12, 40, prompt=(150, 0.6), output=(15, 0.5)).fit(1024)
PAIR = Workload("pair", (WorkloadRequest("a", 0.0, 300, 40), WorkloadRequest("b", 0.0, 300, 40)))


class ShortestPromptFirst(NeuronScheduler):
    """The shortest waiting prompt goes first."""

    def schedule(self, throttle_prefills=False):
        waiting = sorted(self.waiting, key=lambda r: r.num_prompt_tokens)
        self.waiting.clear()
        self.waiting.extend(waiting)
        return super().schedule(throttle_prefills)


class Crashes(NeuronScheduler):
    def can_schedule(self, request):
        raise ZeroDivisionError("oops")


def is_complete(experiment):
    """Check what every experiment promises."""
    assert experiment.question.endswith("?")
    assert experiment.answer.endswith(".")
    assert len(experiment.table)
    assert experiment.alt_text.endswith(".")
    shown = experiment._repr_mimebundle_()
    assert shown["text/html"].count("<img ") == shown["text/html"].count("alt=") == 1
    assert experiment.answer in shown["text/plain"]
    figure = experiment.figure
    assert len(figure.data) == len(experiment.chart.series)
    looks = [(t.line.dash, t.marker.symbol) for t in figure.data if t.type == "scatter"]
    looks += [t.marker.pattern.shape for t in figure.data if t.type == "bar"]
    assert len(set(looks)) == len(figure.data), "told apart by colour alone"
    assert figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text
    return True


def test_a_policy_of_ten_lines_against_the_packaged_ones():
    experiment = policies(ShortestPromptFirst, BUSY, **SMALL)
    assert is_complete(experiment)
    table = experiment.table.set_index("policy")
    assert list(table.index) == [
        "ShortestPromptFirst", "NeuronScheduler", "SeparatedScheduler", "HoldbackScheduler",
    ]  # fmt: skip
    mine, packaged = table.loc["ShortestPromptFirst"], table.loc["NeuronScheduler"]
    assert mine["TTFT p50, s"] < packaged["TTFT p50, s"]
    assert mine["TTFT p99, s"] > packaged["TTFT p99, s"]
    assert experiment.answer.startswith("At the median those of ShortestPromptFirst (")
    assert f"half within {mine['TTFT p50, s']:.3g} s" in experiment.alt_text
    # The figures are those of a plain simulation.
    metrics = simulate(BUSY, NeuronScheduler, **SMALL).metrics()
    assert packaged["ITL p99, s"] == metrics.itl.p99
    assert packaged["output tokens/s"] == metrics.output_tokens_per_second


def test_a_policy_that_crashes_does_not_spoil_the_others():
    experiment = policies(Crashes, BUSY, against=[NeuronScheduler], **SMALL)
    assert experiment.table["crashed"].tolist() == [True, False]
    assert experiment.table["finished"].tolist() == [0, len(BUSY)]
    assert experiment.notes[0].startswith("Crashes crashed in step 1 (ZeroDivisionError: oops)")
    assert experiment.answer.startswith("Those of NeuronScheduler")
    assert "Crashes" not in experiment.alt_text
    only = policies(Crashes, BUSY, against=[], **SMALL)
    assert only.answer == "Nobody's: no policy finished a request."


def test_other_latencies_and_names():
    experiment = policies(
        {"scheduler": ShortestPromptFirst}, BUSY, against=[{"max_num_seqs": 2}], latency="e2e",
        **SMALL,
    )  # fmt: skip
    assert experiment.table["policy"].tolist() == ["ShortestPromptFirst", "max_num_seqs=2"]
    assert "time from arrival to last token" in experiment.question
    with pytest.raises(ValueError, match="latency: 'itl' must be one of"):
        policies(ShortestPromptFirst, BUSY, latency="itl")
    with pytest.raises(ValueError, match="two have this name"):
        policies(HoldbackScheduler, BUSY, **SMALL)


def test_ladders_are_fitted_to_the_past_and_tested_on_the_future():
    lengths = [100, 100, 300, 300] * 5 + [100, 100, 300, 1000] * 5
    prompts = Workload("w", tuple(WorkloadRequest(f"r{i}", i, n, 1) for i, n in enumerate(lengths)))
    experiment = ladders(prompts, count=3, max_num_batched_tokens=1024, granule=4)
    assert is_complete(experiment)
    table = experiment.table.set_index("usual ladder")
    powers = table.loc["powers of two (Neuron)"]
    # 128, 256, 512, 1024 for 10 x 100, 5 x 300, 5 x 1000 tokens
    padded = 10 * 128 + 5 * 512 + 5 * 1024
    assert powers["padding, usual"] == pytest.approx(1 - 7500 / padded)
    # In the past there was no 1000, so its bucket is the last one.
    assert powers["fitted ladder"] == (100, 300, 1024)
    assert powers["padding, fitted to the first half"] == pytest.approx(1 - 7500 / 7620)
    assert powers["padding, best possible"] == 0
    mine = table.loc["none, 3 buckets"]
    assert mine["buckets"] == 3
    assert mine["fitted ladder"] == (100, 300, 1024)
    assert experiment.answer == (
        "With 4 buckets fitted to the first half, 1.6% of the second half's tokens are padding; "
        "with powers of two, as many buckets, 16.3%."
    )


def test_ladders_need_two_chunks():
    with pytest.raises(ValueError, match="two halves need at least 2"):
        ladders(PAIR.head(1))


def test_kv_policies_at_several_sizes():
    experiment = kv_policies(BUSY, kv_tokens=[2048, 4096], slo=None, **SMALL)
    assert is_complete(experiment)
    table = experiment.table.set_index(["KV tokens", "policy"])
    assert len(table) == 6
    running = table["running, mean"]
    assert running[2048, "worst_case"] < running[2048, "reservation"] <= running[2048, "banker"]
    assert table["preemptions"].max() == 0
    assert table["ratio"][2048, "worst_case"] == 1
    # All four seats can be taken: no policy has a say.
    assert table.loc[4096]["ratio"].tolist() == [1, 1, 1]
    assert re.search(r"2,048 tokens of KV cache: worst_case \S+ tokens/s \(x1.00\)",
                     experiment.answer)  # fmt: skip
    assert "declares exactly" in experiment.notes[0]


def test_kv_policies_by_default_hold_2_4_and_8_requests_of_the_longest_kind():
    experiment = kv_policies(PAIR, **SMALL)
    assert experiment.table["KV tokens"].tolist() == [2048] * 3 + [4096] * 3 + [8192] * 3


def test_what_requests_declare_bounds_the_reservation():
    # 300 + 40 tokens are 11 blocks of 32; 300 + 400 are 22.
    together = {"num_kv_blocks": 1 + 32, "neuron_config": {"kv_admission": "reservation"}}
    exact = simulate(PAIR, NeuronScheduler, **together, **SMALL).metrics()
    declared = simulate(PAIR, declaring(400), **together, **SMALL).metrics()
    assert (exact.running.max, declared.running.max) == (2, 1)
    assert declared.num_finished == 2
    experiment = kv_policies(PAIR, kv_tokens=[1024], declared_max_tokens=400, **SMALL)
    assert experiment.table["running, most"].tolist() == [1, 1, 2]
    assert "declares at least 400" in experiment.notes[0]


def test_declaring_stays_fast_forwarded_and_exact():
    settings = {"neuron_config": {"kv_admission": "banker"}, "num_kv_blocks": 40, **SMALL}
    runs = [simulate(BUSY, declaring(100), fast_forward=fast, **settings) for fast in (True, False)]
    assert runs[0].why_not_fast_forwarded is None
    assert runs[0].num_scheduled_steps < runs[1].num_scheduled_steps
    assert runs[0].metrics() == runs[1].metrics()


def test_a_claim_is_never_more_than_there_is():
    settings = {"neuron_config": {"kv_admission": "reservation"}, "num_kv_blocks": 13, **SMALL}
    assert simulate(PAIR, declaring(1000), **settings).metrics().num_finished == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"declared_max_tokens": 0}, "declared_max_tokens: 0 must be at least 1"),
        ({"declared_max_tokens": 9, "scheduler": NeuronScheduler}, "leave out scheduler"),
        ({"neuron_config": {"num_seqs_buckets": [3]}}, "9 runs failed, the first: ValueError: num"),
    ],
)
def test_bad_settings_of_kv_policies(options, says):
    with pytest.raises(ValueError, match=says):
        kv_policies(PAIR, **options, **SMALL)


def test_pacing_trades_first_tokens_for_steadier_decodes():
    crowd = bursty(6, 40, burstiness=0.05, prompt=(200, 0.5), output=(20, 0.5))
    experiment = pacing(
        crowd, max_consecutive_prefills=(4, 1), max_decode_stall_tokens=[256, 512],
        **{**SMALL, "max_num_seqs": 32},
    )  # fmt: skip
    assert is_complete(experiment)
    table = experiment.table
    assert table["limit"].tolist() == ["no limit", 4, 1, 512, 256]
    free, tight = table.iloc[0], table.iloc[2]
    assert tight["longest ITL, s"] < free["longest ITL, s"]
    assert tight["TTFT p50, s"] > free["TTFT p50, s"]
    assert experiment.answer.startswith("Without a limit the longest wait for a next token is")
    assert "no limit" in experiment.figure.data[0].text
    assert "no limit" not in experiment.figure.data[1].text


def test_pacing_that_changes_nothing_says_so():
    experiment = pacing(PAIR.head(1), max_consecutive_prefills=[1], **SMALL)
    assert experiment.table["limit"].tolist() == ["no limit", 1, 1024, 512, 256]
    assert experiment.answer.startswith("Nothing, for no limit changes anything")


def test_a_sweeping_experiment_goes_on_where_it_was(tmp_path):
    options = {"kv_tokens": [1024], "results": tmp_path / "kv.jsonl", **SMALL}
    first = kv_policies(PAIR, **options)
    size = (tmp_path / "kv.jsonl").stat().st_size
    again = kv_policies(PAIR, **options)
    assert again.table.equals(first.table)
    assert (tmp_path / "kv.jsonl").stat().st_size == size


def test_the_four_are_what_the_package_offers():
    assert {"kv_policies", "ladders", "pacing", "policies"} <= set(experiments.__all__)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ladders(BUSY, count="x"), "count: 'x' must be an int of at least 1"),
        (lambda: ladders(BUSY, granule=0), "granule: 0 must be an int of at least 1"),
        (lambda: kv_policies(BUSY, kv_tokens="ab", **SMALL), "kv_tokens: 'a' must be a number of"),
        (lambda: kv_policies(BUSY, kv_tokens=[-5], **SMALL), "kv_tokens: -5 must be a number of"),
        (
            lambda: pacing(BUSY, max_consecutive_prefills=(), max_decode_stall_tokens=(), **SMALL),
            "pacing: no limit is given",
        ),
        (lambda: ladders("conv.csv"), "workload: 'conv.csv' is no Workload; give Workload.read"),
        (lambda: kv_policies(None, kv_tokens=[1024], **SMALL), "workload: None is no Workload"),
        (lambda: pacing("conv.csv", **SMALL), "workload: 'conv.csv' is no Workload"),
        (lambda: pacing([BUSY, 5], **SMALL), "workload: 5 is no Workload"),
    ],
)
def test_bad_input_is_named_before_anything_runs(call, says):
    with pytest.raises(ValueError, match=says):
        call()
