"""A plain Llama forward in torch: the reference that answers and logits are held against.

Written from the checkpoint format alone: no cache, no batching tricks, no fused attention, and no
code shared with the training script, the runner or vLLM.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

if TYPE_CHECKING:
    from pathlib import Path


class PlainLlama:
    """A Hugging Face Llama checkpoint directory, in float32 on the CPU."""

    def __init__(self, path: Path) -> None:
        self.config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self.weights = load_file(path / "model.safetensors")

    @torch.inference_mode()
    def logits(self, ids: list[int], positions: list[int] | None = None) -> torch.Tensor:
        """Logits [length, vocabulary] of one sequence; positions are 0, 1, 2, ... when None."""
        where = torch.tensor(range(len(ids)) if positions is None else positions)
        x = self.weights["model.embed_tokens.weight"][torch.tensor(ids)]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            x = x + self._attention(self._norm(x, layer + "input_layernorm"), where, layer)
            x = x + self._mlp(self._norm(x, layer + "post_attention_layernorm"), layer)
        return self._linear(self._norm(x, "model.norm"), "lm_head")

    def _attention(self, x: torch.Tensor, positions: torch.Tensor, layer: str) -> torch.Tensor:
        head_dim = self.config["head_dim"]

        def heads(name: str) -> torch.Tensor:  # [heads, length, head_dim]
            projected = self._linear(x, f"{layer}self_attn.{name}")
            return projected.unflatten(1, (-1, head_dim)).transpose(0, 1)

        q = self._rotate(heads("q_proj"), positions)
        k = self._rotate(heads("k_proj"), positions)
        v = heads("v_proj")
        shared_by = q.shape[0] // k.shape[0]  # query heads of one KV head are neighbours
        k, v = k.repeat_interleave(shared_by, 0), v.repeat_interleave(shared_by, 0)
        scores = q @ k.mT / head_dim**0.5
        # By order in the sequence, not by position: positions may be wrong on purpose.
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        attended = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self._linear(attended.transpose(0, 1).flatten(1), layer + "self_attn.o_proj")

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding: dimension j turns together with dimension j + head_dim / 2."""
        half = x.shape[-1] // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = positions[:, None] * theta ** (-torch.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            (
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            ),
            dim=-1,
        )

    def _mlp(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        gate = self._linear(x, layer + "mlp.gate_proj")
        up = self._linear(x, layer + "mlp.up_proj")
        return self._linear(gate * gate.sigmoid() * up, layer + "mlp.down_proj")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self.weights[name + ".weight"]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[name + ".weight"].T
