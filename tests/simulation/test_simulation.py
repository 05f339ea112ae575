"""Simulation: the real schedulers on a virtual clock."""

import gc
from dataclasses import replace

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import HoldbackScheduler, Lab, NeuronScheduler, SeparatedScheduler
from neuron_sched_lab.simulation.cost_model import FunctionCostModel
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.trace.trace import Trace
from neuron_sched_lab.workloads.generators import chat_turns, closed_loop, poisson
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload

COST = FunctionCostModel(
    prefill=lambda bucket, context: 0.001 * bucket + 1e-6 * context,
    decode=lambda rows, context: 0.01,
)
SMALL = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 128,
    "max_model_len": 512,
    "cost_model": COST,
}


def workload(*requests):
    return Workload("w", tuple(WorkloadRequest(*r) for r in requests))


def test_the_clock_is_the_sum_of_the_steps_and_the_pauses():
    result = simulate(workload(("a", 1.0, 100, 3), ("b", 9.0, 200, 1)), **SMALL)
    log = result.log
    # a: a prefill padded to 128 tokens and two decodes; then nothing until b, in two chunks.
    assert [run.start for run in log.runs] == pytest.approx([1.0, 1.128, 9.0, 9.128])
    assert list(log.step_end) == pytest.approx([1.128, 1.138, 1.148, 9.128, 9.256128])
    assert list(log.finished) == pytest.approx([1.148, 9.256128])
    assert [r.num_padded_tokens for r in result.trace] == [128, 1, 1, 128, 128]


def test_who_arrives_during_a_step_is_added_before_the_next():
    result = simulate(workload(("a", 0.0, 10, 5), ("b", 0.133, 10, 1)), **SMALL)
    assert [r.phase for r in result.trace] == ["prefill", "decode", "prefill", *["decode"] * 3]
    assert result.trace.requests["b"].arrived_before_step == 3
    metrics = result.metrics()
    assert metrics.ttft.max == pytest.approx(0.138 + 0.128 - 0.133)


def test_adding_takes_the_time_that_the_cost_model_says():
    class Slow(FunctionCostModel):
        request_seconds = 0.5

    settings = {**SMALL, "cost_model": Slow(COST.prefill, COST.decode)}
    # b arrives while a is added, and so is added before the first step as well.
    log = simulate(workload(("a", 0.0, 10, 2), ("b", 0.3, 10, 1)), **settings).log
    assert [run.start for run in log.runs] == pytest.approx([1.0, 1.128, 1.256])


def test_a_follower_arrives_when_the_answer_before_it_has_ended():
    after = WorkloadRequest("b", 0.5, 10, 1, after="a")
    result = simulate(Workload("w", (WorkloadRequest("a", 0.0, 10, 2), after)), **SMALL)
    assert list(result.log.arrival) == pytest.approx([0.0, 0.138 + 0.5])


def test_a_mixed_step_costs_the_sum_of_its_parts():
    requests = workload(("a", 0.0, 10, 9), ("b", 0.005, 20, 1))
    result = simulate(requests, Scheduler, **SMALL)
    mixed = next(r for r in result.trace if r.phase == "mixed")
    assert mixed.model_seconds == pytest.approx(0.02 + 0.01)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_refused_requests_are_reported_and_their_users_go_on(fast_forward):
    requests = Workload(
        "w",
        (
            WorkloadRequest("long", 0.0, 512, 5),
            WorkloadRequest("next", 0.0, 10, 2, after="long"),
            WorkloadRequest("greedy", 0.0, 300, 200),
        ),
    )
    result = simulate(requests, num_kv_blocks=12, fast_forward=fast_forward, **SMALL)
    assert sorted(result.refused) == ["greedy", "long"]
    assert "no room within max_model_len = 512" in result.refused["long"]
    assert "need 16 KV blocks of 32, the cache has 11" in result.refused["greedy"]
    metrics = result.metrics()
    assert (metrics.num_requests, metrics.num_finished, metrics.num_refused) == (3, 1, 2)


def test_answers_end_at_max_model_len():
    result = simulate(workload(("a", 0.0, 500, 100)), **SMALL)
    assert len(result.trace.tokens()["a"]) == 12


class Seed(SeparatedScheduler):
    """Without the guard, and without a KV bound: the deadlock of the seed's design."""

    progress_guard = False


def test_a_deadlock_is_reported_and_ends_the_simulation():
    requests = workload(("a", 0.0, 300, 200), ("b", 0.0, 300, 200))
    result = simulate(requests, Seed, num_kv_blocks=17, **SMALL)
    assert result.stalled
    metrics = result.metrics()
    assert metrics.num_finished == 0
    assert metrics.num_empty_steps == 100
    mended = simulate(requests, SeparatedScheduler, num_kv_blocks=17, **SMALL)
    assert not mended.stalled
    assert mended.metrics().num_finished == 2


@pytest.mark.parametrize("cls", [NeuronScheduler, HoldbackScheduler])
def test_a_live_lab_takes_the_same_steps(cls):
    """Same scheduler class, same requests: a simulation decides what a live engine decides."""
    settings = {"max_num_seqs": 3, "max_num_batched_tokens": 128, "max_model_len": 512}
    requests = [(f"r{i}", 0.0, 20 + 47 * i, 3 + 5 * i) for i in range(7)]
    with Lab(cls, enable_prefix_caching=False, **settings) as lab:
        for request_id, _, num_prompt, num_output in requests:
            prompt = [9] * num_prompt
            lab.add(prompt, max_tokens=num_output, request_id=request_id, ignore_eos=True)
        live = lab.run()
    simulated = simulate(workload(*requests), cls, COST, **settings).trace
    assert simulated.config == live.config
    assert [without_times(r) for r in simulated] == [without_times(r) for r in live]


def without_times(record):
    """What a step was, apart from its times, its texts and which tokens the model gave."""
    scheduled = [(*s[:-1], len(s.new_token_ids)) for s in record.scheduled]
    ours = {"schedule_seconds", "model_seconds", "new_text", "inputs", "scheduled"}
    return scheduled, {k: v for k, v in vars(record).items() if k not in ours}


@pytest.mark.parametrize(
    ("cls", "config", "expected"),
    [
        (NeuronScheduler, {}, "worst_case"),
        (NeuronScheduler, {"kv_admission": "banker"}, "banker"),
        (SeparatedScheduler, {"kv_admission": "banker"}, None),
        (Scheduler, None, None),
    ],
)
def test_a_trace_knows_its_kv_policy(cls, config, expected):
    trace = simulate(workload(), cls, neuron_config=config, **SMALL).trace
    assert trace.config.kv_admission == expected


def test_a_record_tells_who_waits_for_a_prefill_from_who_waits_for_a_block(tmp_path):
    requests = poisson(50, 30, prompt=(40, 0.5), output=(60, 0.5))
    settings = {**SMALL, "max_num_seqs": 8, "max_model_len": 256, "block_size": 4}
    banker = {"kv_admission": "banker"}
    trace = simulate(requests, num_kv_blocks=80, neuron_config=banker, **settings).trace
    decodes = [r for r in trace if r.phase == "decode"]
    # In a decode step nobody is hidden but by the banker; in a prefill step it is not asked.
    assert all(r.held_decodes == r.hidden for r in decodes)
    assert sum(bool(r.held_decodes) for r in decodes) > 10
    prefills = [r for r in trace if r.phase == "prefill"]
    assert any(r.hidden for r in prefills) and not any(r.held_decodes for r in prefills)
    trace.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == trace


def test_a_trace_from_before_these_fields_can_still_be_read(tmp_path):
    trace = simulate(workload(("a", 0.0, 10, 3)), **SMALL).trace
    trace.save(tmp_path / "new.jsonl")
    header, *rest = (tmp_path / "new.jsonl").read_text().splitlines()
    header = header.replace(', "kv_admission": "worst_case"', "")
    (tmp_path / "old.jsonl").write_text("\n".join([header, *rest]))
    old = Trace.load(tmp_path / "old.jsonl")
    assert old.records == trace.records
    assert old.config == replace(trace.config, kv_admission=None)


def test_simulated_records_are_a_trace_like_any_other(tmp_path):
    result = simulate(poisson(20, 15, prompt=100, output=(10, 0.5)), **SMALL)
    result.trace.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == result.trace
    result.trace.to_perfetto(tmp_path / "t.json")
    assert result.trace.summary().num_preemptions == 0


def test_large_runs_keep_no_records_unless_asked():
    requests = closed_loop(2, 10, prompt=50, output=5)
    assert len(simulate(requests, keep_records=False, **SMALL).trace) == 0
    assert len(simulate(requests, **SMALL).trace) == simulate(requests, **SMALL).log.num_steps


def test_chat_turns_find_their_history_in_the_prefix_cache():
    chats = chat_turns(1, 5, num_turns=4, think_seconds=1, prompt=(40, 0.3), output=(30, 0.3))
    cold = simulate(chats, enable_prefix_caching=False, **SMALL)
    warm = simulate(chats, enable_prefix_caching=True, **SMALL)
    followers = {r.request_id for r in chats if r.after is not None}
    firsts = [
        s.num_computed_tokens
        for record in warm.trace
        for s in record.scheduled
        if s.request_id in followers and s.phase == "prefill"
    ]
    assert followers and min(firsts) >= 64
    prefilled = [sum(r.num_tokens for r in x.trace if r.phase == "prefill") for x in (cold, warm)]
    assert prefilled[1] < 0.7 * prefilled[0]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_asynchronous_classes_are_stepped(fast_forward):
    requests = closed_loop(2, 6, prompt=50, output=5)
    result = simulate(requests, AsyncScheduler, fast_forward=fast_forward, **SMALL)
    assert result.metrics().num_finished == 6
    expected = "asynchronous scheduling" if fast_forward else "fast_forward=False"
    assert result.why_not_fast_forwarded == expected


def test_max_steps_stops_in_the_middle():
    result = simulate(workload(("a", 0.0, 10, 50)), fast_forward=False, max_steps=7, **SMALL)
    assert result.log.num_steps == 7
    assert result.metrics().num_finished == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_afterwards_as_it_was(enabled, monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    calls = []
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))

    def fails(rows, context):
        raise RuntimeError("a cost model's own")

    settings = {**SMALL, "cost_model": FunctionCostModel(COST.prefill, fails)}
    with pytest.raises(RuntimeError, match="own"):
        simulate(workload(("a", 0.0, 10, 3)), **settings)
    assert calls == (["disable", "enable"] if enabled else ["disable"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"neuron_config": {"num_seqs_bucket": [1]}}, "did you mean 'num_seqs_buckets'"),
        ({"neuron_config": 5}, "neuron_config: 5 must be a dict, such as"),
        ({"scheduler": "NeuronScheduler"}, "scheduler: 'NeuronScheduler' is no vLLM scheduler"),
        ({"scheduler": 5}, "scheduler: 5 is no vLLM scheduler class"),
        ({"max_num_seqs": "4"}, "max_num_seqs: '4' must be an int of at least 1"),
        ({"max_num_seqs": 2.5}, "max_num_seqs: 2.5 must be an int"),
        ({"max_num_seqs": 10**11}, "128 must be at least max_num_seqs = 100000000000"),
        ({"max_num_batched_tokens": 1}, "max_num_batched_tokens: 1 must be at least max_num_seqs"),
        ({"block_size": 0}, "block_size: 0 must be an int of at least 1"),
        ({"max_model_len": None}, "max_model_len: None must be an int"),
        ({"max_model_len": 10**9}, "num_kv_blocks: 62500001 must be at most 4194304; lower"),
        ({"num_kv_blocks": "x"}, "num_kv_blocks: 'x' must be an int"),
        ({"num_kv_blocks": 10**12}, "num_kv_blocks: 1000000000000 must be at most 4194304"),
        ({"cost_model": lambda rows: 1}, "give FunctionCostModel(prefill, decode)"),
        ({"cost_model": 5}, "cost_model: 5 lacks prefill_seconds() or decode_seconds()"),
        ({"workload": "x"}, "workload: 'x' is no Workload; give Workload.read(file)"),
        ({"workload": None}, "workload: None is no Workload"),
        ({"num_seqs": 1}, "num_seqs: simulate() has no such setting; did you mean 'max_num_seqs'"),
        ({"foo": 1}, "foo: simulate() has no such setting; help(simulate) lists them"),
        ({"scheduler_cls": Scheduler}, "did you mean 'scheduler'?"),
        ({"watermark": 5}, "watermark: 5 is refused by vLLM: Input should be less than 1"),
        ({"policy": "foo"}, "policy: 'foo' is refused by vLLM: Input should be 'fcfs' or"),
        ({"long_prefill_token_threshold": 999}, "cannot be greater than the max_model_len (512)"),
        ({"enable_prefix_caching": "maybe"}, "enable_prefix_caching: 'maybe' must be True or"),
        ({"async_scheduling": "x"}, "async_scheduling: 'x' must be True or False"),
        ({"fast_forward": "x"}, "fast_forward: 'x' must be True or False"),
        ({"keep_records": 3}, "keep_records: 3 must be True or False"),
        ({"max_steps": -1}, "max_steps: -1 must be an int of at least 0"),
    ],
)
def test_a_bad_setting_is_named(settings, message):
    with pytest.raises(ValueError) as error:
        simulate(**{"workload": workload(), **SMALL, **settings})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
