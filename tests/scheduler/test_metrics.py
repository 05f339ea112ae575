"""What the scheduler counts for Prometheus, and what it says in the log."""

from __future__ import annotations

import logging
from collections import Counter
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from vllm.v1.outputs import ModelRunnerOutput

from neuron_sched_lab.scheduler import NeuronScheduler, SchedulerState
from neuron_sched_lab.scheduler.metrics import NeuronMetrics, count_graph_compiles, get_labels
from neuron_sched_lab.scheduler.neuron import logger
from tests.scheduler.factory import make_request, make_scheduler

LABELS = {"model_name": "tiny", "engine": "0"}


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def scheduler(registry):
    scheduler = make_scheduler(
        NeuronScheduler, max_num_seqs=4, max_model_len=64, num_blocks=2 * 4 + 1,
        max_num_batched_tokens=32,
        neuron_config={"num_batched_tokens_buckets": [8, 32], "num_seqs_buckets": [1, 2, 4]},
    )  # fmt: skip
    scheduler.metrics = NeuronMetrics(
        list(LABELS.values()),
        scheduler.num_batched_tokens_buckets,
        scheduler.num_seqs_buckets,
        [state.value for state in SchedulerState],
        registry,
    )
    return scheduler


def run(scheduler, prompts: dict[str, int], max_tokens: int = 3) -> list:
    """Serve prompts of these lengths to their end; return every SchedulerOutput."""
    for request_id, num_tokens in prompts.items():
        scheduler.add_request(make_request(request_id, num_tokens, max_tokens=max_tokens))
    outputs = []
    while scheduler.has_requests():
        assert len(outputs) < 200
        outputs.append(scheduler.schedule())
        finish(scheduler, outputs[-1])
    return outputs


def finish(scheduler, output) -> None:
    """Give the scheduler a token for each request that samples one."""
    ids = list(output.num_scheduled_tokens)
    tokens = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
    index = {request_id: i for i, request_id in enumerate(ids)}
    scheduler.update_from_output(output, ModelRunnerOutput(ids, index, tokens))


def get(registry, name: str, **labels: str) -> float:
    value = registry.get_sample_value(f"vllm_neuron:{name}", {**LABELS, **labels})
    assert value is not None, f"no sample {name} {labels}"
    return value


def test_prefills_count_in_the_bucket_that_pads_them(scheduler, registry):
    run(scheduler, {"a": 5, "b": 40})  # chunks: 5 in 8; 32 in 32, 8 in 8
    assert get(registry, "prefill_chunk_tokens_bucket", le="8.0") == 2
    assert get(registry, "prefill_chunk_tokens_bucket", le="32.0") == 3
    assert get(registry, "prefill_chunk_tokens_sum") == 45
    assert get(registry, "prefill_padding_tokens_total", bucket="8") == 3
    assert get(registry, "prefill_padding_tokens_total", bucket="32") == 0
    assert scheduler.total_padding_tokens == 3


def test_decodes_count_in_the_bucket_that_pads_them(scheduler, registry):
    outputs = run(scheduler, {"a": 5, "b": 5})
    decodes = [o for o in outputs if set(o.num_scheduled_tokens.values()) == {1}]
    sizes = Counter(len(o.num_scheduled_tokens) for o in decodes)
    assert sizes[2] > 0
    assert get(registry, "decode_seqs_bucket", le="1.0") == sizes[1]
    assert get(registry, "decode_seqs_bucket", le="2.0") == sizes[1] + sizes[2]
    assert get(registry, "decode_seqs_count") == len(decodes)


def test_deferred_for_kv_counts_a_request_once(scheduler, registry):
    """Two of the full length fit into the cache; the third waits."""
    run(scheduler, {"a": 5, "b": 5, "c": 5}, max_tokens=9)
    assert get(registry, "deferred_for_kv_total") == 1
    assert get(registry, "held_back_steps_total", reason="KV cache saturated") > 2


def test_held_back_counts_steps_by_reason(scheduler, registry):
    run(scheduler, {"a": 40, "b": 5})
    # While the first chunk of a runs nobody else may start, nor while its second does.
    assert get(registry, "held_back_steps_total", reason="prefill batch full") == 1
    assert get(registry, "held_back_steps_total", reason="prefill in progress") == 1
    assert get(registry, "held_back_steps_total", reason="at capacity") == 0


def test_state_is_the_one_entered_last(scheduler, registry):
    def states() -> dict[str, float]:
        return {s.value: get(registry, "scheduler_state", state=s.value) for s in SchedulerState}

    assert states() == {"IDLE": 1, "ACTIVE_PREFILL": 0, "ACTIVE_DECODE": 0}
    scheduler.add_request(make_request("a", 5))
    output = scheduler.schedule()
    assert states() == {"IDLE": 0, "ACTIVE_PREFILL": 1, "ACTIVE_DECODE": 0}
    finish(scheduler, output)
    run(scheduler, {})
    assert states() == {"IDLE": 1, "ACTIVE_PREFILL": 0, "ACTIVE_DECODE": 0}
    entered = Counter(transition.after.value for transition in scheduler.transitions)
    for state in SchedulerState:
        counted = get(registry, "scheduler_transitions_total", state=state.value)
        assert counted == entered[state.value] == 1


def test_only_an_engine_that_logs_stats_counts():
    assert make_scheduler(NeuronScheduler).metrics is None


def test_a_second_scheduler_takes_the_place_of_the_first(registry):
    for ladder in ([8, 32], [16, 64]):
        metrics = NeuronMetrics(list(LABELS.values()), ladder, [1, 2], ["IDLE"], registry)
    metrics._observe_chunk(10)
    assert get(registry, "prefill_chunk_tokens_bucket", le="16.0") == 1
    gone = {**LABELS, "le": "8.0"}
    assert registry.get_sample_value("vllm_neuron:prefill_chunk_tokens_bucket", gone) is None


def test_graph_compiles_count_by_phase():
    from prometheus_client import REGISTRY

    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="compiled"),
        parallel_config=SimpleNamespace(data_parallel_index=1),
    )
    phases = ("prefill", "prefill", "decode")
    log = [SimpleNamespace(key=SimpleNamespace(phase=phase), seconds=0.5) for phase in phases]
    count_graph_compiles(config, log)
    labels = {"model_name": "compiled", "engine": "1"}
    assert get_labels(config) == list(labels.values())
    name = "vllm_neuron:graph_compile_seconds_count"
    assert REGISTRY.get_sample_value(name, {**labels, "phase": "prefill"}) == 2
    assert REGISTRY.get_sample_value(name, {**labels, "phase": "decode"}) == 1


def test_every_transition_is_a_debug_line(scheduler):
    """The logger stands below vLLM's, so VLLM_LOGGING_LEVEL=DEBUG shows it."""
    assert logger.name == "vllm.neuron_sched_lab.scheduler.neuron"
    lines: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: lines.append(record.getMessage())
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        run(scheduler, {"a": 5})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert [line.split(": ", 1)[1] for line in lines] == [
        "IDLE -> ACTIVE_PREFILL (prefill in waiting queue)",
        "ACTIVE_PREFILL -> ACTIVE_DECODE (prefill completes)",
        "ACTIVE_DECODE -> IDLE (all decode complete and no prefill waiting)",
    ]
    assert len(lines) == len(scheduler.transitions)
