# ruff: noqa: F811
"""Exercises of 08_kernels.ipynb: what the learner finds, and what solves it."""

import numpy as np

from neuron_sched_lab.course.checks.attention import new_state


# %% exercise: merge
# %% skeleton
def my_merge(state, scores, values):
    """Return the state after one more piece: scores [rows, n] of its keys, values [n, d]."""
    raise NotImplementedError  # rescale what was summed so far, then add the piece
# %% solution
def my_merge(state, scores, values):
    """Return the state after one more piece: scores [rows, n] of its keys, values [n, d]."""
    largest, total, out = state
    new_largest = np.maximum(largest, scores.max(axis=1))
    rescale = np.exp(largest - new_largest)
    weights = np.exp(scores - new_largest[:, None])
    total = total * rescale + weights.sum(axis=1)
    out = out * rescale[:, None] + weights @ values
    return new_largest, total, out

# %% exercise: attention
# %% skeleton
def my_attention(q, k, v, mask, segment, merge):
    """Return softmax(q k^T + mask) v, with scores of at most `segment` keys at a time.

    q: [rows, d], scaled already; k, v: [n, d]; mask: [rows, n]; merge: as my_merge.
    """
    raise NotImplementedError  # for each segment: its scores, then merge
# %% solution
def my_attention(q, k, v, mask, segment, merge):
    """Return softmax(q k^T + mask) v, with scores of at most `segment` keys at a time.

    q: [rows, d], scaled already; k, v: [n, d]; mask: [rows, n]; merge: as my_merge.
    """
    state = new_state(len(q), v.shape[1])
    for start in range(0, len(k), segment):
        end = start + segment
        scores = q @ k[start:end].T + mask[:, start:end]
        state = merge(state, scores, v[start:end])
    _, total, out = state
    return out / total[:, None]

# %% exercise: matmuls
# %% skeleton
# [matmuls that make scores, matmuls that multiply weights with values]
MY_MATMULS = None
# %% solution
# [matmuls that make scores, matmuls that multiply weights with values]
MY_MATMULS = [7, 25]

# %% exercise: gather
# %% skeleton
def my_gather(cache, block_table, num_tokens):
    """Return the tokens of the blocks in block_table: [len(block_table) * block_size, d].

    cache: [num_blocks, block_size, d]. Rows from num_tokens on are 0, whatever the cache holds.
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_gather(cache, block_table, num_tokens):
    """Return the tokens of the blocks in block_table: [len(block_table) * block_size, d].

    cache: [num_blocks, block_size, d]. Rows from num_tokens on are 0, whatever the cache holds.
    """
    rows = cache[block_table].reshape(-1, cache.shape[-1])
    rows[num_tokens:] = 0.0
    return rows

# %% exercise: combine
# %% skeleton
def my_combine(one, other):
    """Return the state of all keys, from the states of two parts of them."""
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_combine(one, other):
    """Return the state of all keys, from the states of two parts of them."""
    largest = np.maximum(one[0], other[0])
    first, second = np.exp(one[0] - largest), np.exp(other[0] - largest)
    total = one[1] * first + other[1] * second
    out = one[2] * first[:, None] + other[2] * second[:, None]
    return largest, total, out
