"""Policy diff: the first step at which two schedulers differ, and what it is worth."""

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.experiments import comparison as compare_module
from neuron_sched_lab.experiments.comparison import compare
from neuron_sched_lab.experiments.decisions import describe_reason
from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    KVAdmissionScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from neuron_sched_lab.simulation.cost_model import FunctionCostModel
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.workloads.generators import poisson
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload

COST = FunctionCostModel(lambda bucket, context: 0.001 * bucket, lambda rows, context: 0.01)
SMALL = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 128,
    "max_model_len": 512,
    "cost_model": COST,
}


def workload(*requests):
    return Workload("w", tuple(WorkloadRequest(*r) for r in requests))


BUSY = workload(("a", 0.0, 100, 5), ("b", 0.0, 50, 3), ("c", 0.0, 20, 4))


class CrashesLater(NeuronScheduler):
    def schedule(self, throttle_prefills=False):
        self.num_steps = getattr(self, "num_steps", 0) + 1
        if self.num_steps == 4:
            raise KeyError("lost")
        return super().schedule(throttle_prefills)


class CrashesInUpdate(NeuronScheduler):
    def update_from_output(self, *args):
        outputs = super().update_from_output(*args)
        if len(self.running) == 2:
            raise RuntimeError("two are too many")
        return outputs


class LastComesFirst(NeuronScheduler):
    def schedule(self, throttle_prefills=False):
        waiting = list(self.waiting)[::-1]
        self.waiting.clear()
        self.waiting.extend(waiting)
        return super().schedule(throttle_prefills)


def test_the_first_difference_has_both_decisions_and_the_reasons():
    diff = compare(NeuronScheduler, HoldbackScheduler, BUSY, padding=False, **SMALL)
    first = diff.first
    assert first.step == 2
    assert first.what == "only HoldbackScheduler decodes a"
    ours, theirs = first.sides
    assert ours.decision == "prefills b (50 tokens, padded to 128), hides a"
    assert ours.reason.startswith("c held back: prefill batch full; state ACTIVE_PREFILL")
    assert theirs.decision == "prefills b (50 tokens), decodes a"
    assert theirs.reason == "c held back: prefill batch full"
    assert (ours.clock, theirs.clock) == pytest.approx((0.128, 0.1))
    assert str(first).splitlines()[1].startswith("  NeuronScheduler at 0.128 s: prefills b")
    assert diff.answer.startswith("In step 2: only HoldbackScheduler decodes a. HoldbackScheduler")


def test_decodes_that_the_banker_pauses_are_told_from_hidden_ones():
    result = simulate(
        poisson(50, 30, prompt=(40, 0.5), output=(60, 0.5)),
        neuron_config={"kv_admission": "banker"},
        num_kv_blocks=80,
        **SMALL | {"max_num_seqs": 8, "max_model_len": 256, "block_size": 4},
    )
    paused = [record for record in result.trace if record.held_decodes]
    assert paused
    for record in paused:
        assert "paused: the banker has no KV block to lend" in describe_reason(record)
        assert set(record.held_decodes) <= set(record.hidden)


def test_padding_is_a_difference_unless_left_out():
    diff = compare(PaddedScheduler, SeparatedScheduler, BUSY, **SMALL)
    assert (diff.first.step, diff.first.what) == (
        1,
        "PaddedScheduler pads a to 128 tokens, SeparatedScheduler to 100",
    )
    assert compare(PaddedScheduler, SeparatedScheduler, BUSY, padding=False, **SMALL).first is None


def test_batch_padding_is_a_difference_too():
    alone = workload(("a", 0.0, 10, 3))
    diff = compare(
        {"neuron_config.num_seqs_buckets": [2]}, {"neuron_config": {}}, alone, **SMALL
    )  # fmt: skip
    assert diff.first.step == 2
    assert diff.first.what.endswith("pads the batch to 2 rows, neuron_config=defaults to 1")


def test_no_difference():
    diff = compare(NeuronScheduler, KVAdmissionScheduler, BUSY, **SMALL)
    assert diff.first is None
    assert diff.num_steps_compared == 8
    assert diff.answer == (
        "They do not: NeuronScheduler and KVAdmissionScheduler decide the same in all 8 steps."
    )
    assert diff.table["ratio"].dropna().eq(1).all()
    assert "TTFT p99 x1, " in diff.alt_text
    same = compare(NeuronScheduler, NeuronScheduler, BUSY, **SMALL)
    assert same.names == ("NeuronScheduler (a)", "NeuronScheduler (b)")


def test_another_order_names_who_runs_in_whose_place():
    diff = compare(NeuronScheduler, LastComesFirst, BUSY, names=("fifo", "lifo"), **SMALL)
    assert diff.first.step == 1
    assert diff.first.what == "fifo prefills a where lifo prefills c"
    assert diff.names == ("fifo", "lifo")


def test_a_clock_that_runs_otherwise_is_told_from_a_decision():
    later = workload(("a", 0.0, 100, 5), ("b", 0.11, 50, 3))
    diff = compare(
        {"scheduler": SeparatedScheduler},
        {"scheduler": SeparatedScheduler, "cost_model": FunctionCostModel(
            lambda bucket, context: 0.0011 * bucket, COST.decode)},
        later,
        names=("fast", "slow"),
        **SMALL,
    )  # fmt: skip
    # After its prefill, at 0.1 s, the fast one has not seen b yet; the slow one has, at 0.11 s.
    assert diff.first.step == 2
    assert diff.first.what == "fast decodes a where slow prefills b"
    turned = compare(
        {"cost_model": FunctionCostModel(lambda b, c: 0.0011 * b, COST.decode)},
        {"cost_model": FunctionCostModel(lambda b, c: 0.0005 * b, COST.decode)},
        later,
        scheduler=HoldbackScheduler,
        names=("slow", "fast"),
        **{k: v for k, v in SMALL.items() if k != "cost_model"},
    )
    assert turned.first.what == "only slow prefills b (not there yet for fast)"


def test_an_end_before_the_other():
    diff = compare(SeparatedScheduler, Scheduler, workload(("a", 0.0, 10, 1)), **SMALL)
    assert diff.first is None
    diff = compare({"max_model_len": 12}, {"max_model_len": 512}, workload(("a", 0.0, 10, 9)),
                   padding=False, max_num_seqs=1, max_num_batched_tokens=128)  # fmt: skip
    assert diff.first.what == "only max_model_len=512 still has work"
    assert diff.first.sides[0].decision == "has no such step"


@pytest.mark.parametrize("cls", [CrashesLater, CrashesInUpdate])
def test_a_crash_is_reported_with_its_step(cls):
    diff = compare(NeuronScheduler, cls, BUSY, **SMALL)
    crash = diff.crashes[cls.__name__]
    assert crash.step == diff.first.step == (4 if cls is CrashesLater else 2)
    assert crash.error in {"KeyError: 'lost'", "RuntimeError: two are too many"}
    assert diff.answer == f"In step {crash.step}: {cls.__name__} crashed."
    assert diff.first.sides[0].decision
    assert diff.first.sides[1].reason == crash.error
    assert f"crashed in step {crash.step}" in diff.notes[0]
    assert diff.table["ratio"].isna().all()
    assert diff.table.iloc[-1].tolist()[1:3] == [3, 0]
    assert "no figures to compare" in diff.alt_text


def test_both_crash():
    diff = compare(CrashesLater, {"scheduler": CrashesLater, "max_num_seqs": 1}, BUSY, **SMALL)
    assert diff.first.step <= 4
    both = compare(CrashesLater, CrashesLater, BUSY, **SMALL)
    assert both.first.step == 4
    assert both.first.what == "CrashesLater (a) and CrashesLater (b) crashed"


def test_a_difference_before_the_crash_comes_first():
    diff = compare(SeparatedScheduler, CrashesLater, BUSY, **SMALL)
    assert (diff.first.step, diff.crashes["CrashesLater"].step) == (1, 4)


def test_bad_settings_are_errors_of_the_caller():
    with pytest.raises(ValueError, match="kv_admission"):
        compare(NeuronScheduler, {"neuron_config.kv_admission": "none"}, BUSY, **SMALL)
    with pytest.raises(ValueError, match="must be a scheduler class or a mapping"):
        compare(NeuronScheduler, 3, BUSY, **SMALL)
    with pytest.raises(ValueError, match="only settings of 'neuron_config' have a dot"):
        compare(NeuronScheduler, {"kv.admission": 1}, BUSY, **SMALL)


def test_a_late_difference_is_found_and_the_limit_is_said(monkeypatch):
    monkeypatch.setattr(compare_module, "FIRST_STEPS", 4)
    many = poisson(5, 30, prompt=60, output=20)
    late = Workload("w", (*many.requests, WorkloadRequest("last", 1e3, 60, 2)))

    class Drops(NeuronScheduler):
        def can_schedule(self, request):
            if request.request_id == "last" and self._clock_of_last() < 3:
                return False
            return super().can_schedule(request)

        def _clock_of_last(self):
            self.asked = getattr(self, "asked", 0) + 1
            return self.asked

    diff = compare(NeuronScheduler, Drops, late, **SMALL)
    assert diff.first.step > 100
    assert diff.first.what == "only NeuronScheduler prefills last"
    cut = compare(NeuronScheduler, Drops, late, max_steps=50, **SMALL)
    assert cut.first is None
    assert cut.answer == (
        "Not in the first 50 steps, their figures differ, so they part later; raise max_steps."
    )
    same = compare(NeuronScheduler, KVAdmissionScheduler, late, max_steps=50, **SMALL)
    assert same.answer == "Not in the first 50 steps, and their figures are equal."


def test_refused_requests_and_stalls_are_notes():
    class Seed(SeparatedScheduler):
        progress_guard = False

    requests = workload(("a", 0.0, 300, 200), ("b", 0.0, 300, 200), ("c", 0.0, 512, 1))
    diff = compare(NeuronScheduler, Seed, requests, num_kv_blocks=17, **SMALL)
    assert "Seed stalled: it stopped scheduling although requests were left." in diff.notes
    assert any("requests refused: 1; the first: request 'c'" in note for note in diff.notes)


def test_it_shows_itself():
    diff = compare(NeuronScheduler, SeparatedScheduler, BUSY, **SMALL)
    shown = diff._repr_mimebundle_()
    assert shown["text/plain"].splitlines()[0].startswith("Where do NeuronScheduler and Separated")
    assert "step 1: NeuronScheduler pads a" in shown["text/plain"]
    assert f'alt="{diff.alt_text}"' in shown["text/html"]
    assert '<th scope="col">ratio</th>' in shown["text/html"]
    assert diff.figure.data[0].type == "bar"
    assert diff._repr_mimebundle_() == shown
