"""Random LoRA adapters in PEFT's format, strong enough to change most answers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from neuron_sched_lab.runner.llama_config import LlamaConfig
from neuron_sched_lab.runner.lora.adapter_files import get_projection_shapes

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_random_adapter(
    path: Path, model: Path, *, seed, rank=8, modules=ALL, strength=0.3, alpha=16, **config
) -> Path:
    """Save an adapter for the checkpoint in `model`; other keywords go to adapter_config.json."""
    llama = LlamaConfig.from_directory(model)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(llama.num_hidden_layers):
        for module, (out_features, in_features) in get_projection_shapes(llama).items():
            if module not in modules:
                continue
            block = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{block}.{module}"
            a = torch.randn(rank, in_features, generator=generator) / in_features**0.5
            b = torch.randn(out_features, rank, generator=generator) * strength / rank**0.5
            tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = a, b
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules}
    (path / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    return path
