"""Running prompts through an engine, and looking into its worker."""

from __future__ import annotations

import random

import torch

from neuron_sched_lab import Lab, NeuronScheduler
from tests.runner.checkpoints import load_in_transformers

SETTINGS = {"max_num_seqs": 6, "max_num_batched_tokens": 256}
LENGTHS = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513, 1024, 1700, 1900]


def make_prompts(n, *, vocab=98, seed=0):
    """Prompts of 1 to 1,900 random tokens; a third of them share a prefix of 150."""
    rng = random.Random(seed)
    lengths = (LENGTHS + [rng.randint(1, 400) for _ in range(n)])[:n]
    prefix = [rng.randrange(3, vocab) for _ in range(150)]
    prompts = []
    for i, length in enumerate(lengths):
        tokens = [rng.randrange(3, vocab) for _ in range(length)]
        prompts.append((prefix + tokens)[:length] if i % 3 == 2 else tokens)
    rng.shuffle(prompts)
    return prompts


def max_tokens_of(index):
    return 4 + index % 9


def run_lab(prompts, scheduler=NeuronScheduler, model="tiny", **settings):
    """Greedy tokens of each prompt; some arrive while others run."""
    # A random checkpoint has no tokenizer.
    plain = {} if model == "tiny" else {"skip_tokenizer_init": True}
    with Lab(scheduler, model, **{**SETTINGS, **plain, **settings}) as lab:
        return run_in(lab, prompts, detokenize=model == "tiny")


def run_in(lab, prompts, *, detokenize=True):
    for i, prompt in enumerate(prompts):
        lab.add(prompt, max_tokens=max_tokens_of(i), ignore_eos=True, detokenize=detokenize)
        if i % 4 == 0:
            lab.step()
    lab.run()
    return [list(tokens) for tokens in lab.trace.tokens().values()]


@torch.inference_mode()
def run_transformers(path, prompts):
    """Greedy tokens of transformers' generate."""
    model = load_in_transformers(path)
    answers = []
    for i, prompt in enumerate(prompts):
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens_of(i),
            min_new_tokens=max_tokens_of(i),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def worker_of(lab):
    return lab.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def runner_of(lab):
    return worker_of(lab).model_runner
