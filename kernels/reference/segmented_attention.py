"""Reference of segmented_attention: one prompt chunk over its prior context and itself.

A short chunk without prior context is plain causal attention, which torch has in one operator.
Otherwise the context is read in segments, so that the scores in memory never exceed one segment
however long the context is. What the segments have given so far is merged by an online softmax:
each partial result carries the logarithm of its softmax denominator, and two are averaged by them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch.nn import functional

from .linear import linear
from .paged_kv import lay_out

MAX_TOKENS_FOR_SDPA = 128
"""Up to about here torch's one operator for causal attention is faster than two matrix products and
a softmax, which use the CPU's wider vectors (measured: between 60 and 190, by number and size of
heads)."""


class _Segment(NamedTuple):
    """Keys and values that are attended to at once.

    Attributes:
        keys: [num_kv_heads, length, head_dim], float32, each head contiguous.
        values: like keys.
        num_prior: so many of them, in front, are prior context, which every query sees. The rest
            is of the chunk itself: query `first_query + i` sees its keys up to i.
        first_query: queries before it see nothing of the segment.
    """

    keys: torch.Tensor
    values: torch.Tensor
    num_prior: int
    first_query: int = 0


def segmented_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    prior_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    kv_segment_size: int,
    scale: float,
) -> torch.Tensor:
    """Attend with the tokens of one chunk; see `interface.Kernels` for the arguments.

    Padding rows, and slots behind the context, are left out by slicing, which a CPU may do at
    run time; a compiled graph masks them.
    """
    n, prior = int(num_tokens), int(prior_tokens)
    out = torch.zeros(q.shape, dtype=q.dtype)
    q, k, v = (tensor[:n].transpose(0, 1).float() for tensor in (q, k, v))
    if prior == 0 and n <= MAX_TOKENS_FOR_SDPA:
        attended = functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True
        )
    else:
        segments = _read_segments(k, v, k_cache, v_cache, block_table, prior, kv_segment_size)
        queries = q.unflatten(0, (len(k), -1)) * scale
        attended = torch.stack([_attend_head(queries[h], segments, h) for h in range(len(k))])
    out[:n] = attended.view(q.shape).transpose(0, 1)
    return out


def _read_segments(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    prior: int,
    kv_segment_size: int,
) -> list[_Segment]:
    """Cut the context into segments: the prior one, then the chunk's own k and v.

    k and v are [num_kv_heads, n, head_dim]. The segment where the prior context ends also holds
    the chunk's first tokens: one softmax over more keys is cheaper than merging two.
    """
    block_size = k_cache.shape[2]
    end = prior + k.shape[1]
    segments = []
    for start in range(0, end, kv_segment_size):
        stop = min(start + kv_segment_size, end)
        num_prior = max(min(stop, prior) - start, 0)
        first_own, stop_own = max(start - prior, 0), max(stop - prior, 0)
        blocks = block_table[start // block_size : -(-(start + num_prior) // block_size)]
        keys, values = (
            lay_out(cache, blocks, num_prior, own[:, first_own:stop_own])
            for cache, own in ((k_cache, k), (v_cache, v))
        )
        segments.append(_Segment(keys, values, num_prior, first_query=first_own))
    return segments


def _attend_head(queries: torch.Tensor, segments: list[_Segment], head: int) -> torch.Tensor:
    """Attend with the query heads of one KV head.

    Args:
        queries: [group, n, head_dim], scaled.
        segments: all of them; every query sees the first one.
        head: which KV head.

    Returns:
        [group, n, head_dim].
    """
    out, lse = queries, None
    for segment in segments:
        seen_by = slice(segment.first_query, None)
        scores = _score(queries[:, seen_by], segment, head)
        largest = scores.amax(-1, keepdim=True) if len(segments) > 1 else None
        weights = torch.softmax(scores, -1, out=scores)  # in place: half the memory traffic
        seen = linear(weights.flatten(0, 1), segment.values[head].T)
        seen = seen.view_as(queries[:, seen_by])
        if largest is None:
            return seen
        # The largest weight is exp(largest score - lse), and never 0.
        seen_lse = largest - weights.amax(-1, keepdim=True).log()
        if lse is None:
            out, lse = seen, seen_lse
        else:
            _merge(out[:, seen_by], lse[:, seen_by], seen, seen_lse)
    return out


def _score(queries: torch.Tensor, segment: _Segment, head: int) -> torch.Tensor:
    """Return the scores [group, n, length], -inf where a query must not see a key."""
    group, n, head_dim = queries.shape
    scores = linear(queries.reshape(-1, head_dim), segment.keys[head]).view(group, n, -1)
    own = scores[..., segment.num_prior :]
    if own.shape[-1]:
        own += _future_mask(n, own.shape[-1])
    return scores


@lru_cache(maxsize=64)
def _future_mask(n: int, length: int) -> torch.Tensor:
    """[n, length]: -inf where the key comes after the query, else 0."""
    return torch.full((n, length), float("-inf")).triu(1)


def _merge(
    out: torch.Tensor, lse: torch.Tensor, seen: torch.Tensor, seen_lse: torch.Tensor
) -> None:
    """Average two results over different keys into the first, by their denominators."""
    merged = torch.logaddexp(lse, seen_lse)
    out.mul_((lse - merged).exp_()).addcmul_(seen, (seen_lse - merged).exp_())
    lse.copy_(merged)
