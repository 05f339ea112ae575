"""A Llama in plain torch that loads a Hugging Face checkpoint directory.

Everything that a Neuron graph needs is an argument: padded inputs, the caches, and where tokens
go in them. There is no state and no shape that depends on a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional

from .llama_config import LlamaConfig, compute_inverse_frequencies
from .lora.adapter_weights import make_adapter_weights

if TYPE_CHECKING:
    from vllm.config.lora import LoRAConfig

    from ..kernels.interface import Kernels
    from .kv_cache import KVCache

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"


class _Layer(nn.Module):
    """One decoder layer. Projections that share an input share a matrix."""

    def __init__(
        self, config: LlamaConfig, kernels: Kernels, lora_config: LoRAConfig | None
    ) -> None:
        super().__init__()
        self.config, self.linear, self.kernels = config, kernels.linear, kernels
        hidden, head_dim = config.hidden_size, config.head_dim
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.input_layernorm = _empty(hidden)
        self.qkv_proj = _empty((num_heads + 2 * num_kv_heads) * head_dim, hidden)
        self.o_proj = _empty(hidden, num_heads * head_dim)
        self.post_attention_layernorm = _empty(hidden)
        self.gate_up_proj = _empty(2 * config.intermediate_size, hidden)
        self.down_proj = _empty(hidden, config.intermediate_size)
        self.adapters = None if lora_config is None else make_adapter_weights(config, lora_config)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: KVCache,
        attend: Callable[..., torch.Tensor],
        uses: torch.Tensor | None,
    ) -> torch.Tensor:
        """Run the layer on x [tokens, hidden_size], which is overwritten.

        `uses` says which token uses which adapter slot, as in `AdapterWeights.forward`.
        """
        num_heads, num_kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        qkv = self._project(self._norm(x, self.input_layernorm), "qkv_proj", uses)
        qk, v = qkv.tensor_split((-num_kv_heads * self.config.head_dim,), dim=1)
        q, k = self.kernels.rotary(qk, positions, cos_sin).split((num_heads, num_kv_heads), dim=1)
        v = v.view_as(k)
        self.kernels.kv_cache_update(k, v, cache.k, cache.v, slot_mapping)
        x += self._project(attend(q, k, v, cache.k, cache.v).flatten(1), "o_proj", uses)
        x += self._mlp(x, uses)
        return x

    def forward_row(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: KVCache,
        attend: Callable[..., torch.Tensor],
        uses: torch.Tensor | None,
        row: torch.Tensor,
    ) -> torch.Tensor:
        """Run the layer for one `row` [1] of x; of the others only keys and values are computed.

        They go to the cache, where `attend` finds those of earlier tokens.
        """
        num_q_rows = self.config.num_attention_heads * self.config.head_dim
        q_rows, kv_rows = slice(num_q_rows), slice(num_q_rows, None)
        normed = self._norm(x, self.input_layernorm)
        k, v = self._project(normed, "qkv_proj", uses, kv_rows).chunk(2, dim=1)
        k = self.kernels.rotary(k, positions, cos_sin)
        v = v.view_as(k)
        self.kernels.kv_cache_update(k, v, cache.k, cache.v, slot_mapping)
        x, normed, positions, k, v = (t.index_select(0, row) for t in (x, normed, positions, k, v))
        q = self._project(normed, "qkv_proj", uses, q_rows)
        q = self.kernels.rotary(q, positions, cos_sin)
        x += self._project(attend(q, k, v, cache.k, cache.v).flatten(1), "o_proj", uses)
        x += self._mlp(x, uses)
        return x

    def pack(self, *names: str) -> None:
        """Replace weights by the packed form that the kernels read."""
        for name in names:
            weight = getattr(self, name)
            delattr(self, name)  # or torch insists that a parameter stays one
            setattr(self, name, self.kernels.pack(weight))

    def _mlp(self, x: torch.Tensor, uses: torch.Tensor | None) -> torch.Tensor:
        normed = self._norm(x, self.post_attention_layernorm)
        gate, up = self._project(normed, "gate_up_proj", uses).chunk(2, dim=-1)
        return self._project(functional.silu(gate).mul_(up), "down_proj", uses)

    def _project(
        self, x: torch.Tensor, name: str, uses: torch.Tensor | None, rows: slice | None = None
    ) -> torch.Tensor:
        """Multiply x by a weight, or some rows of one that is not packed; adapters add theirs."""
        weight = getattr(self, name)
        out = self.linear(x, weight if rows is None else weight[rows])
        if uses is None or self.adapters is None:
            return out
        return out + self.adapters[name](x, uses, rows or slice(None))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, weight, self.config.rms_norm_eps)


class Llama(nn.Module):
    """Llama over a paged KV cache, in torch's default dtype.

    Args:
        config: its dimensions.
        kernels: attention, cache update and what else the device has of its own.
        max_model_len: positions that the rotary tables cover.
        kv_segment_size: tokens of prior context that prefill attention reads at a time.
        lora_config: vLLM's, for the slots of LoRA adapters; None for a model without them.
    """

    def __init__(
        self,
        config: LlamaConfig,
        kernels: Kernels,
        max_model_len: int,
        kv_segment_size: int,
        lora_config: LoRAConfig | None = None,
    ) -> None:
        super().__init__()
        self.num_adapter_slots = 0 if lora_config is None else lora_config.max_loras
        self.config, self.kernels = config, kernels
        self.kv_segment_size = kv_segment_size
        self.scale = config.head_dim**-0.5
        self.embed_tokens = _empty(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            _Layer(config, kernels, lora_config) for _ in range(config.num_hidden_layers)
        )
        self.norm = _empty(config.hidden_size)
        self.lm_head = (
            self.embed_tokens
            if config.tie_word_embeddings
            else _empty(config.vocab_size, config.hidden_size)
        )
        angles = torch.outer(
            torch.arange(max_model_len).float(),
            compute_inverse_frequencies(config.rope, config.head_dim),
        )
        dtype = torch.get_default_dtype()
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
        self.register_buffer("cos_sin", cos_sin, persistent=False)

    def prefill(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        block_table: torch.Tensor,
        prior_tokens: torch.Tensor,
        num_tokens: torch.Tensor,
        adapter_slots: torch.Tensor | None,
        kv_caches: Sequence[KVCache],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one chunk; arguments as in `inputs.PrefillInputs`.

        One row of logits is wanted, so the last layer runs for that row alone. Its query is that
        of a decode step: everything before it is in the cache.

        Returns:
            logits [1, vocab_size] after the last real token, and the greedy token [1], int32.
        """

        def attend(*qkv_and_cache: torch.Tensor) -> torch.Tensor:
            return self.kernels.segmented_attention(
                *qkv_and_cache,
                block_table,
                prior_tokens,
                num_tokens,
                self.kv_segment_size,
                self.scale,
            )

        last_row = num_tokens - 1

        def attend_last(*qkv_and_cache: torch.Tensor) -> torch.Tensor:
            return self.kernels.paged_decode_attention(
                *qkv_and_cache, block_table[None], prior_tokens + last_row, self.scale
            )

        uses = self._get_uses(adapter_slots)
        x = self._embed(input_ids)
        for layer, cache in zip(self.layers[:-1], kv_caches[:-1], strict=True):
            x = layer(x, positions, self.cos_sin, slot_mapping, cache, attend, uses)
        x = self.layers[-1].forward_row(
            x, positions, self.cos_sin, slot_mapping, kv_caches[-1], attend_last, uses, last_row
        )
        return self._head(x)

    def decode(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        adapter_slots: torch.Tensor | None,
        kv_caches: Sequence[KVCache],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one token of each request; arguments as in `inputs.DecodeInputs`.

        Returns:
            logits [bucket, vocab_size] and the greedy tokens [bucket], int32, padding included.
        """

        def attend(*qkv_and_cache: torch.Tensor) -> torch.Tensor:
            return self.kernels.paged_decode_attention(
                *qkv_and_cache, block_tables, context_lens, self.scale
            )

        uses = self._get_uses(adapter_slots)
        x = self._embed(input_ids)
        for layer, cache in zip(self.layers, kv_caches, strict=True):
            x = layer(x, positions, self.cos_sin, slot_mapping, cache, attend, uses)
        return self._head(x)

    def _get_uses(self, adapter_slots: torch.Tensor | None) -> torch.Tensor | None:
        """Turn slots [tokens] into [tokens, slots]: 1 where a token uses the adapter in a slot."""
        if adapter_slots is None:
            return None
        slots = torch.arange(self.num_adapter_slots, device=adapter_slots.device)
        return (adapter_slots[:, None] == slots).to(self.norm.dtype)

    def _embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(input_ids, self.embed_tokens)

    def _head(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.kernels.rms_norm(x, self.norm, self.config.rms_norm_eps)
        logits = self.kernels.linear(normed, self.lm_head)
        return logits, logits.argmax(-1).to(torch.int32)

    @torch.no_grad()
    def load_weights(self, path: Path) -> None:
        """Fill the weights from a checkpoint directory, one tensor at a time.

        Raises:
            ValueError: the checkpoint lacks a tensor, has one too many, or one of another shape.
        """
        targets = dict(self._targets())
        seen = set()
        for name, tensor in iterate_safetensors(path):
            if name.endswith("rotary_emb.inv_freq"):
                continue  # old checkpoints store what config.json says
            if name == "lm_head.weight" and self.config.tie_word_embeddings:
                continue
            if name not in targets:
                raise ValueError(
                    f"{path}: tensor {name!r} has no place in the runner's Llama; use a "
                    f"checkpoint of plain LlamaForCausalLM weights"
                )
            if targets[name].shape != tensor.shape:
                raise ValueError(
                    f"{path}: tensor {name!r} is {list(tensor.shape)}; config.json asks for "
                    f"{list(targets[name].shape)}; the two files do not belong together"
                )
            targets[name].copy_(tensor)
            seen.add(name)
        if missing := sorted(targets.keys() - seen):
            raise ValueError(
                f"{path}: {len(missing)} tensors are missing, first {missing[0]!r}; the "
                f"checkpoint is not complete"
            )

    def pack_weights(self) -> None:
        """Give the layers' projections the layout that the kernels want.

        Once, after loading: a packed weight can neither be filled nor packed again.
        """
        for layer in self.layers:
            layer.pack("o_proj", "gate_up_proj", "down_proj")
        for layer in self.layers[:-1]:
            layer.pack("qkv_proj")  # forward_row cuts the last layer's in two

    def _targets(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor name of a checkpoint and the part of a weight that it fills."""
        yield "model.embed_tokens.weight", self.embed_tokens
        yield "model.norm.weight", self.norm
        if not self.config.tie_word_embeddings:
            yield "lm_head.weight", self.lm_head
        head_dim = self.config.head_dim
        q_rows = self.config.num_attention_heads * head_dim
        kv_rows = self.config.num_key_value_heads * head_dim
        for i, layer in enumerate(self.layers):
            q, k, v = layer.qkv_proj.split((q_rows, kv_rows, kv_rows))
            gate, up = layer.gate_up_proj.chunk(2)
            parts = {
                "input_layernorm": layer.input_layernorm,
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": layer.o_proj,
                "post_attention_layernorm": layer.post_attention_layernorm,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.down_proj,
            }
            for part, target in parts.items():
                yield f"model.layers.{i}.{part}.weight", target


def iterate_safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint directory, sharded or not, as (name, tensor).

    Raises:
        ValueError: the directory has no safetensors weights, or a shard is missing.
    """
    files = [WEIGHTS_FILE]
    if (path / INDEX_FILE).is_file():
        index = json.loads((path / INDEX_FILE).read_text(encoding="utf-8"))
        files = sorted(set(index["weight_map"].values()))
    for name in files:
        # Only names beside the index: a path in it must not lead elsewhere.
        file = path / Path(name).name
        if not file.is_file():
            raise ValueError(
                f"{path}: {file.name} is missing; the runner loads {WEIGHTS_FILE} or the shards "
                f"that {INDEX_FILE} names; convert the checkpoint to safetensors"
            )
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  (not a mapping)
                yield key, tensors.get_tensor(key)


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)
