"""Random Llama checkpoints, written by transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def save_random_llama(
    path: Path, *, heads, kv_heads, head_dim, tied, rope=None, layers=2, sharded=True, **config
) -> Path:
    """Save a random Llama whose logits are far enough apart to compare greedy tokens."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=160,
            hidden_size=96,
            intermediate_size=224,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=2048,
            tie_word_embeddings=tied,
            initializer_range=0.15,
            rope_parameters=rope or {"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=1,
            eos_token_id=2,
            **config,
        )
    )
    model.save_pretrained(path, max_shard_size="200KB" if sharded else "1GB")
    return path


def load_in_transformers(path: Path) -> LlamaForCausalLM:
    """Load a checkpoint the way a user of transformers does."""
    return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
