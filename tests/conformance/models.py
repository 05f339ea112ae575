"""Configurations of the models that vLLM's scheduler tests name, so that no hub is asked.

A model name such as facebook/opt-125m is also a relative path. In a folder that holds these files,
vLLM's tests run as they are. A scheduler reads little of a model: that it generates, and how long a
sequence may be; so an OPT stands in for the multimodal two (plugin.py adds their image budget).
"""

from __future__ import annotations

import json
from pathlib import Path

MAX_POSITIONS = {
    "facebook/opt-125m": 2048,
    "facebook/opt-350m": 2048,
    "llava-hf/llava-1.5-7b-hf": 4096,
    "Qwen/Qwen2.5-VL-3B-Instruct": 128000,
}


def write_models(folder: Path) -> None:
    """Write `folder`/NAME/config.json for each model."""
    for name, max_positions in MAX_POSITIONS.items():
        config = {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "max_position_embeddings": max_positions,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "vocab_size": 50272,
            "eos_token_id": 2,
        }
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
