"""Reference of segmented_attention: one prompt chunk over its prior context and itself.

The context is read in segments, so that the scores in memory never exceed one segment however
long the context is. What the segments have given so far is merged by an online softmax: each
partial result carries the logarithm of its softmax denominator, and two are averaged by them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from .linear import linear
from .memo import remember_last
from .paged_kv import block_rows, gather_rows


class _Segment(NamedTuple):
    """Keys and values that are attended to at once.

    Attributes:
        keys: [num_kv_heads, length, head_dim].
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
    """Attend with the tokens of one chunk; see `dispatch.Kernels` for the arguments.

    Padding rows, and slots behind the context, are left out by slicing, which a CPU may do at
    run time; a compiled graph masks them.
    """
    n, num_heads = int(num_tokens), q.shape[1]
    num_kv_heads = k_cache.shape[1]
    group = num_heads // num_kv_heads
    prior = _read_prior(k_cache, v_cache, block_table, int(prior_tokens), kv_segment_size)
    segments = _join(prior, _split_chunk(k[:n], v[:n], kv_segment_size))
    out = torch.zeros(q.shape, dtype=q.dtype)
    for head in range(num_kv_heads):
        heads = slice(head * group, (head + 1) * group)
        out[:n, heads] = _attend_head((q[:n, heads] * scale).float(), segments, head)
    return out


def _read_prior(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    prior: int,
    kv_segment_size: int,
) -> list[_Segment]:
    """Gather the prior context, only slots that hold it; every query sees all of it."""
    num_kv_heads, block_size = k_cache.shape[1:3]
    segments = []
    for start in range(0, prior, kv_segment_size):
        stop = min(start + kv_segment_size, prior)
        blocks = block_table[start // block_size : -(-stop // block_size)]
        rows = _block_rows(blocks, num_kv_heads)
        keys, values = (
            gather_rows(cache, rows, len(blocks))[:, : stop - start].float()
            for cache in (k_cache, v_cache)
        )
        segments.append(_Segment(keys, values, num_prior=stop - start))
    return segments


@remember_last
def _block_rows(blocks: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    return torch.from_numpy(block_rows(blocks.numpy()[None], num_kv_heads))


def _split_chunk(k: torch.Tensor, v: torch.Tensor, kv_segment_size: int) -> list[_Segment]:
    """Cut the chunk's own keys and values; a query sees none of the segments behind it."""
    keys, values = k.float().transpose(0, 1), v.float().transpose(0, 1)
    return [
        _Segment(
            keys[:, start : start + kv_segment_size],
            values[:, start : start + kv_segment_size],
            num_prior=0,
            first_query=start,
        )
        for start in range(0, len(k), kv_segment_size)
    ]


def _join(prior: list[_Segment], own: list[_Segment]) -> list[_Segment]:
    """Put the segments in a row, the last of the prior and the first of the chunk made one.

    Both are seen by every query, and one softmax over more keys is cheaper than merging two.
    """
    if not prior:
        return own
    last, first = prior[-1], own[0]
    joined = _Segment(
        torch.cat((last.keys, first.keys), dim=1),
        torch.cat((last.values, first.values), dim=1),
        num_prior=last.num_prior,
    )
    return [*prior[:-1], joined, *own[1:]]


def _attend_head(queries: torch.Tensor, segments: list[_Segment], head: int) -> torch.Tensor:
    """Attend with the query heads of one KV head.

    Args:
        queries: [n, group, head_dim], scaled.
        segments: the first of them is seen by all queries.
        head: which KV head.

    Returns:
        [n, group, head_dim].
    """
    out, lse = queries, None
    for segment in segments:
        seen_by = slice(segment.first_query, None)
        scores = _score(queries[seen_by], segment, head)
        weights = scores.softmax(-1)
        seen = linear(weights.flatten(0, 1), segment.values[head].T.contiguous())
        seen = seen.view_as(queries[seen_by])
        if len(segments) == 1:
            return seen
        # The largest weight is exp(largest score - lse), and never 0.
        seen_lse = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()
        if lse is None:
            out, lse = seen, seen_lse
        else:
            _merge(out[seen_by], lse[seen_by], seen, seen_lse)
    return out


def _score(queries: torch.Tensor, segment: _Segment, head: int) -> torch.Tensor:
    """Return the scores [n, group, length], -inf where a query must not see a key."""
    n, group, head_dim = queries.shape
    scores = linear(queries.reshape(-1, head_dim), segment.keys[head].contiguous())
    scores = scores.view(n, group, -1)
    own = scores[..., segment.num_prior :]
    if own.shape[-1]:
        own += _future_mask(n, own.shape[-1])[:, None]
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
