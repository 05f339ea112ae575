"""Padding is inert, through the whole engine: garbage there changes no bit of a logit."""

import pytest
import torch

from neuron_sched_lab import Lab
from neuron_sched_lab.runner import inputs
from neuron_sched_lab.runner.device import DECODE
from tests.runner.running import make_prompts, runner_of

PROMPTS = make_prompts(16)


def run_and_collect_logits(poison=None):
    """Run the prompts; return every real row of logits, in order."""
    collected = []
    with Lab(max_num_seqs=4, max_num_batched_tokens=128) as lab:
        runner = runner_of(lab)
        run = runner.graphs.run

        def collecting_run(key, padded, caches):
            logits, tokens = run(key, padded, caches)
            real = int((padded.slot_mapping >= 0).sum()) if key.phase == DECODE else 1
            collected.append(logits[:real].clone())
            return logits, tokens

        runner.graphs.run = collecting_run
        if poison is not None:
            for cache in runner.kv_caches:
                cache.k.fill_(poison)
                cache.v.fill_(poison)
        for prompt in PROMPTS:
            lab.add(prompt, max_tokens=6, ignore_eos=True)
        lab.run()
    return collected


@pytest.fixture(scope="module")
def clean():
    return run_and_collect_logits()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -3e38], ids=str)
def test_garbage_in_padding_and_unused_slots_changes_no_bit(clean, poison, monkeypatch):
    """The null block, every slot not written yet, and the ids of padding tokens."""
    monkeypatch.setattr(inputs, "PADDING_TOKEN", 77)
    poisoned = run_and_collect_logits(poison)
    assert len(poisoned) == len(clean)
    assert all(torch.equal(a, b) for a, b in zip(clean, poisoned, strict=True))
    assert all(torch.isfinite(logits).all() for logits in poisoned)
