"""Greedy tokens equal those of vLLM's own CPU worker and of transformers, in float32."""

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import NeuronAsyncScheduler, NeuronScheduler
from tests.runner.running import make_prompts, max_tokens_of, run_lab, run_transformers


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(60)


@pytest.fixture(scope="module")
def expected(prompts, tiny_model):
    return run_transformers(tiny_model, prompts)


def test_vllms_own_worker_agrees_with_transformers(prompts, expected):
    """So the comparison below is with both."""
    assert [len(tokens) for tokens in expected] == [max_tokens_of(i) for i in range(60)]
    assert run_lab(prompts, Scheduler, worker="vllm") == expected


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("scheduler", [NeuronScheduler, NeuronAsyncScheduler])
def test_60_prompts(prompts, expected, scheduler, prefix_caching):
    assert run_lab(prompts, scheduler, enable_prefix_caching=prefix_caching) == expected


def test_one_seat_and_small_segments(prompts, expected):
    """Other shapes of everything: batches of 1, blocks of 64, segments of 512."""
    got = run_lab(
        prompts[:20],
        max_num_seqs=1,
        block_size=64,
        max_num_batched_tokens=512,
        neuron_config={
            "num_batched_tokens_buckets": [512],
            "kv_segment_size_buckets": [512],
        },
    )
    assert got == expected[:20]


@pytest.mark.parametrize("checkpoint", ["random_gqa1", "random_gqa4"])
def test_random_checkpoints(checkpoint, request):
    path = request.getfixturevalue(checkpoint)
    assert len(list(path.glob("*.safetensors"))) > 1
    prompts = make_prompts(16, vocab=160)
    expected = run_transformers(path, prompts)
    assert len({tuple(tokens) for tokens in expected}) > 10  # the answers tell prompts apart
    assert run_lab(prompts, Scheduler, path, worker="vllm") == expected
    assert run_lab(prompts, NeuronScheduler, path) == expected
    assert run_lab(prompts, NeuronAsyncScheduler, path, enable_prefix_caching=False) == expected
