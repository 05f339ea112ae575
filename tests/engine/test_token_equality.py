"""Whatever a scheduler decides, the tokens are those of vLLM's own scheduler.

Greedy, float32: a scheduler that loses, repeats or misplaces a token, or hands the worker a
wrong block table, changes the answers.
"""

import random

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import (
    KVAdmissionScheduler,
    Lab,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)

NUM_PROMPTS = 40
SETTINGS = {"max_num_seqs": 6, "max_num_batched_tokens": 256}
PURE = [
    SeparatedScheduler,
    PaddedScheduler,
    KVAdmissionScheduler,
    NeuronScheduler,
    NeuronAsyncScheduler,
]


def make_prompts():
    """40 prompts of 1 to 1,900 tokens; a third of them share a prefix of 300."""
    rng = random.Random(0)
    lengths = [1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257, 513, 1024, 1900]
    lengths += [rng.randint(1, 400) for _ in range(NUM_PROMPTS - len(lengths))]
    prefix = [rng.randint(3, 97) for _ in range(300)]
    prompts = []
    for i, length in enumerate(lengths):
        tokens = [rng.randint(3, 97) for _ in range(length)]
        prompts.append(prefix + tokens[:100] if i % 3 == 2 else tokens)
    rng.shuffle(prompts)
    return prompts


def run(scheduler, *, prefix_caching):
    with Lab(scheduler, enable_prefix_caching=prefix_caching, **SETTINGS) as lab:
        for i, prompt in enumerate(make_prompts()):
            lab.add(prompt, max_tokens=4 + i % 9, ignore_eos=True)
            if i % 4 == 0:
                lab.step()  # some arrive while others run
        lab.run()
        return lab.trace


@pytest.fixture(scope="module", params=[True, False], ids=["prefix caching", "no prefix caching"])
def reference(request):
    return request.param, run(Scheduler, prefix_caching=request.param)


def test_the_reference_mixes_batches_and_chunks(reference):
    _, trace = reference
    assert any(r.phase == "mixed" for r in trace)
    assert sum(len(tokens) for tokens in trace.tokens().values()) == sum(
        4 + i % 9 for i in range(NUM_PROMPTS)
    )


@pytest.mark.parametrize("scheduler", PURE, ids=lambda cls: cls.__name__)
def test_tokens_equal_vllms_own(scheduler, reference):
    prefix_caching, expected = reference
    trace = run(scheduler, prefix_caching=prefix_caching)
    assert trace.tokens() == expected.tokens()
    assert {r.phase for r in trace} - {"empty"} == {"prefill", "decode"}
    assert trace.summary().num_preemptions == 0
