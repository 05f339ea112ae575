"""Attention without pages, padding or segments: what every kernel must equal."""

from __future__ import annotations

import torch


def dense_attention(q, keys, values, scale):
    """Causal attention of the last len(q) of all tokens.

    q [n, heads, head_dim]; keys, values [total, kv_heads, head_dim], the n active tokens last.
    """
    n, heads, _ = q.shape
    total, kv_heads, _ = keys.shape
    keys = keys.double().repeat_interleave(heads // kv_heads, dim=1)
    values = values.double().repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    future = torch.arange(total) > torch.arange(total - n, total)[:, None]
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


class PagedContext:
    """One request's keys and values, scattered over a cache full of NaN."""

    def __init__(self, lengths, *, kv_heads, head_dim, block_size, num_blocks, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.block_size = block_size
        shape = (num_blocks, kv_heads, block_size, head_dim)
        self.k_cache = torch.full(shape, float("nan"))
        self.v_cache = torch.full(shape, float("nan"))
        free = (torch.randperm(num_blocks - 1, generator=self.generator) + 1).tolist()
        self.keys, self.values, self.blocks = [], [], []
        for length in lengths:
            blocks = [free.pop() for _ in range(length // block_size + 1)]
            keys, values = (
                self.draw(length, kv_heads, head_dim),
                self.draw(length, kv_heads, head_dim),
            )
            for i in range(length):
                at = blocks[i // block_size], slice(None), i % block_size
                self.k_cache[at], self.v_cache[at] = keys[i], values[i]
            self.blocks.append(blocks)
            self.keys.append(keys)
            self.values.append(values)

    def draw(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def block_tables(self, max_blocks):
        rows = [blocks + [-1] * (max_blocks - len(blocks)) for blocks in self.blocks]
        return torch.tensor(rows, dtype=torch.int32)
