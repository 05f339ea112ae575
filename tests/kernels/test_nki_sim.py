"""Device "nki-sim": a two-layer Llama of toy size generates through the NKI kernels."""

import json
import random

import pytest
import torch
from safetensors.torch import save_file

from neuron_sched_lab.settings.environment import prepare_environment

prepare_environment()

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A checkpoint of random weights, far enough from 0 that greedy tokens differ clearly."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    hidden, mlp, heads = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    shapes = {
        "self_attn.q_proj": (4 * heads, hidden),
        "self_attn.k_proj": (2 * heads, hidden),
        "self_attn.v_proj": (2 * heads, hidden),
        "self_attn.o_proj": (hidden, 4 * heads),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=generator) * 0.3
        for layer in range(2)
        for name, shape in shapes.items()
    }
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(hidden)
    tensors["model.norm.weight"] = torch.ones(hidden)
    for name in ("model.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = torch.randn(CONFIG["vocab_size"], hidden, generator=generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def generate(toy, device):
    """Greedy tokens: chunked prompts, prefix hits, a batch that grows and shrinks."""
    from neuron_sched_lab import Lab, NeuronScheduler

    rng = random.Random(0)
    prefix = [rng.randrange(3, 64) for _ in range(20)]
    lengths = (1, 7, 8, 9, 40, 70)
    with Lab(
        NeuronScheduler,
        toy,
        max_num_seqs=3,
        max_num_batched_tokens=32,
        max_model_len=96,
        block_size=8,
        neuron_config={"num_batched_tokens_buckets": [8, 32]},
        worker="neuron",
        device=device,
        skip_tokenizer_init=True,
    ) as lab:
        for i, length in enumerate(lengths):
            tokens = [rng.randrange(3, 64) for _ in range(length)]
            prompt = (prefix + tokens)[:length] if i % 2 else tokens
            lab.add(prompt, max_tokens=6, ignore_eos=True, detokenize=False)
            lab.step()
        lab.run()
        return {name: list(tokens) for name, tokens in lab.trace.tokens().items()}


def test_greedy_tokens_are_those_of_the_cpu(toy, monkeypatch):
    from neuron_sched_lab.kernels import nki_sim
    from neuron_sched_lab.runner import model_runner

    # The sizes that a Trn2 supports, from 512 on, would cover the toy's context in one segment.
    monkeypatch.setattr(model_runner, "DEFAULT_KV_SEGMENT_SIZE", 16)
    calls = dict.fromkeys(("segmented_attention", "paged_decode_attention", "kv_cache_update"), 0)

    def count(name, kernel):
        def counted(*args):
            calls[name] += 1
            return kernel(*args)

        return counted

    counted = {name: count(name, getattr(nki_sim.SIMULATED, name)) for name in calls}
    kernels = type(nki_sim.SIMULATED)(**counted, linear=nki_sim.SIMULATED.linear)
    monkeypatch.setattr(nki_sim, "SIMULATED", kernels)
    simulated = generate(toy, "nki-sim")
    assert all(calls.values())
    on_cpu = generate(toy, "cpu")
    assert simulated == on_cpu
    assert [len(tokens) for tokens in simulated.values()] == [6] * 6
    # Not one token over and over: such a test would miss a wrong cache.
    assert len({token for tokens in simulated.values() for token in tokens}) > 10
