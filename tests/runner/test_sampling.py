"""Sampling: the tokens and logprobs of vLLM's own CPU worker, seed by seed."""

import math

import pytest
import torch
from vllm import SamplingParams, TokensPrompt
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.sample.logits_processor import LogitsProcessor

from neuron_sched_lab import Lab, NeuronAsyncScheduler, NeuronScheduler
from neuron_sched_lab.tiny_model.tasks import encode
from tests.runner.running import make_prompts

PROMPTS = [prompt[:120] for prompt in make_prompts(14, seed=2)]
VARIANTS = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "seed": 2, "top_k": 5},
    {"temperature": 1.5, "seed": 3, "top_p": 0.8},
    {"temperature": 1.2, "seed": 4, "min_p": 0.1},
    {"temperature": 1.0, "seed": 5, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.8, "presence_penalty": 0.4},
    {"temperature": 1.0, "seed": 6, "presence_penalty": 1.0, "repetition_penalty": 1.1},
    {"logprobs": 3},
    {"temperature": 1.0, "seed": 7, "logprobs": 0},
    {"logit_bias": {40: 5.0, 41: -100.0}},
    {"allowed_token_ids": [50, 51, 52, 53], "temperature": 1.0, "seed": 8},
    {"min_tokens": 6, "bad_words": ["a", "b", "1"]},
]


def run(scheduler, **settings):
    """Each prompt with its variant, all in one engine: batches of every mixture."""
    params = [
        SamplingParams(**{"temperature": 0.0, "max_tokens": 10, "ignore_eos": True, **variant})
        for variant in VARIANTS
    ]
    # The stock worker compiles parts of its sampler for seconds; the numbers are the same.
    with torch.compiler.set_stance("force_eager"), Lab(scheduler, **settings) as lab:
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS]
        return [out.outputs[0] for out in lab.llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def stock():
    # All prompts in one step: vLLM 0.29's CPU worker dies of a chunk of a seeded prompt.
    return run(Scheduler, worker="vllm", max_num_seqs=14, max_num_batched_tokens=2048)


@pytest.mark.parametrize("scheduler", [NeuronScheduler, NeuronAsyncScheduler])
@pytest.mark.parametrize("max_num_seqs", [1, 6])
def test_every_kind_of_sampling_gives_vllms_tokens(stock, scheduler, max_num_seqs):
    ours = run(scheduler, max_num_seqs=max_num_seqs)
    for variant, expected, got in zip(VARIANTS, stock, ours, strict=True):
        assert list(got.token_ids) == list(expected.token_ids), variant
        assert (got.logprobs is None) == (expected.logprobs is None) == ("logprobs" not in variant)
        for one, other in zip(got.logprobs or [], expected.logprobs or [], strict=True):
            assert one.keys() == other.keys()
            assert all(
                math.isclose(one[token].logprob, other[token].logprob, abs_tol=1e-3)
                and one[token].rank == other[token].rank
                for token in one
            )


def test_without_a_seed_samples_differ():
    with Lab(max_num_seqs=4) as lab:
        for _ in range(4):
            lab.add(PROMPTS[0], max_tokens=12, temperature=2.0, ignore_eos=True)
        lab.run()
        assert len(set(lab.trace.tokens().values())) == 4


@pytest.mark.parametrize("scheduler", [NeuronScheduler, NeuronAsyncScheduler])
def test_structured_outputs_follow_their_grammar(scheduler):
    pytest.importorskip("xgrammar")
    with Lab(scheduler) as lab:
        plain = lab.add("1997 1998 ", max_tokens=9)
        shaped = lab.add(
            "1997 1998 ",
            max_tokens=9,
            structured_outputs=StructuredOutputsParams(regex="[a-c]{4}"),
        )
        lab.run()
        assert lab.text[plain] == "1999 2000"
        assert len(lab.text[shaped]) == 4
        assert set(lab.text[shaped]) <= set("abc")


class OnlyA(LogitsProcessor):
    """A user's own processor: allows one token."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.token = encode("A")[1]

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        mask = torch.full_like(logits, float("-inf"))
        mask[:, self.token] = 0
        return logits + mask


def test_a_custom_logits_processor_is_used():
    with Lab(logits_processors=[OnlyA]) as lab:
        lab.add("1997 1998 ", max_tokens=5)
        lab.run()
        assert lab.text["r0"] == "AAAAA"
