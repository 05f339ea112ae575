"""Greedy tokens equal those of vLLM's own CPU worker and of transformers, in float32."""

from pathlib import Path
from typing import NamedTuple

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import Lab, NeuronAsyncScheduler, NeuronScheduler
from tests.runner.running import (
    SETTINGS,
    make_prompts,
    max_tokens_of,
    run_in,
    run_lab,
    run_transformers,
)

NUM_PROMPTS = 60


class Case(NamedTuple):
    """A checkpoint, 60 prompts of 1 to 1,900 tokens, and what transformers answers."""

    path: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=["tiny_model", "random_gqa1", "random_gqa4"])
def case(request):
    path = request.getfixturevalue(request.param)
    prompts = make_prompts(NUM_PROMPTS, vocab=98 if request.param == "tiny_model" else 160)
    return Case(path, prompts, run_transformers(path, prompts))


def get_prefix_hits(trace):
    """Tokens that requests found in the cache: where the first chunk of each begins."""
    begins = {}
    for record in trace:
        for scheduled in record.scheduled:
            begins.setdefault(scheduled.request_id, scheduled.num_computed_tokens)
    return sum(begins.values())


def test_the_cases_ask_for_something(case, random_gqa1, random_gqa4):
    lengths = [len(prompt) for prompt in case.prompts]
    assert (len(lengths), min(lengths), max(lengths)) == (NUM_PROMPTS, 1, 1900)
    assert [len(tokens) for tokens in case.expected] == [
        max_tokens_of(i) for i in range(NUM_PROMPTS)
    ]
    assert len({tuple(tokens) for tokens in case.expected}) > 30  # answers tell prompts apart
    for path in (random_gqa1, random_gqa4):
        assert len(list(path.glob("*.safetensors"))) > 1  # sharded


def test_vllms_own_worker_agrees_with_transformers(case):
    """So the comparison below is with both."""
    assert run_lab(case.prompts, Scheduler, case.path, worker="vllm") == case.expected


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("scheduler", [NeuronScheduler, NeuronAsyncScheduler])
def test_60_prompts(case, scheduler, prefix_caching):
    with Lab(
        scheduler,
        case.path,
        enable_prefix_caching=prefix_caching,
        skip_tokenizer_init=True,
        **SETTINGS,
    ) as lab:
        assert run_in(lab, case.prompts, detokenize=False) == case.expected
        assert (get_prefix_hits(lab.trace) > 0) == prefix_caching
        is_async = lab.llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        assert is_async == (scheduler is NeuronAsyncScheduler)


def test_one_seat_and_small_segments(case):
    """Other shapes of everything: batches of 1, blocks of 64, segments of 512."""
    got = run_lab(
        case.prompts[:20],
        model=case.path,
        max_num_seqs=1,
        block_size=64,
        max_num_batched_tokens=512,
        neuron_config={
            "num_batched_tokens_buckets": [512],
            "kv_segment_size_buckets": [512],
        },
    )
    assert got == case.expected[:20]
