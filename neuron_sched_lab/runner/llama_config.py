"""LlamaConfig: what a checkpoint's config.json asks for, and whether the runner's Llama has it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# Fields of config.json with the only value that is implemented; absent means the same.
_ONLY = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "sliding_window": None,
    "quantization_config": None,
    "partial_rotary_factor": 1.0,
}

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class LlamaConfig:
    """What the model needs of a checkpoint's config.json, under its names.

    Attributes:
        rope: the rotary parameters: rope_type, rope_theta and those of the type.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: Mapping[str, Any]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Read a config.json.

        Raises:
            ValueError: a field asks for what is not implemented; it is named.
        """
        architectures = config.get("architectures") or []
        if architectures != ["LlamaForCausalLM"]:
            raise ValueError(
                f"architectures: {architectures} is not implemented; the runner has "
                f"['LlamaForCausalLM']; use a checkpoint of that kind or vLLM's own worker"
            )
        for field, only in _ONLY.items():
            value = config.get(field, only)
            if value != only:
                raise ValueError(
                    f"{field}: {value!r} in config.json is not implemented; the runner's Llama "
                    f"has {only!r} only; use another checkpoint or vLLM's own worker"
                )
        num_heads = config["num_attention_heads"]
        num_kv_heads = config.get("num_key_value_heads") or num_heads
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_key_value_heads: {num_kv_heads} must divide num_attention_heads = {num_heads}"
            )
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=num_heads,
            num_key_value_heads=num_kv_heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            tie_word_embeddings=bool(config.get("tie_word_embeddings")),
            rope=_read_rope(config),
        )

    @classmethod
    def from_directory(cls, path: Path) -> LlamaConfig:
        """Read the config.json of a checkpoint directory."""
        return cls.from_hf(json.loads((path / "config.json").read_text(encoding="utf-8")))


def _read_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the rotary parameters, as transformers 5 spells them or older versions did."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope["rope_theta"] = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    if rope["rope_type"] not in ROPE_TYPES:
        raise ValueError(
            f"rope_type: {rope['rope_type']!r} in config.json is not implemented; the runner's "
            f"Llama has {', '.join(ROPE_TYPES)}; use another checkpoint or vLLM's own worker"
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor: {rope['partial_rotary_factor']!r} in config.json is not "
            f"implemented; the runner's Llama rotates whole heads; use another checkpoint"
        )
    return rope


def compute_inverse_frequencies(rope: Mapping[str, Any], head_dim: int) -> torch.Tensor:
    """Return the rotation per position of each pair of dimensions: [head_dim / 2], float32.

    Types: `default`; `linear`, positions divided by `factor`; `llama3`, which slows long
    wavelengths down by `factor`, leaves short ones alone and blends in between (Llama 3.1 on).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope["rope_theta"] ** exponents)
    if rope["rope_type"] == "linear":
        return frequencies / rope["factor"]
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wavelengths = 2 * math.pi / frequencies
        turns = rope["original_max_position_embeddings"] / wavelengths
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * frequencies / rope["factor"] + smooth * frequencies
    return frequencies
