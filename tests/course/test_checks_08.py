"""The checks of lesson 08 catch what learners get wrong in attention, and name the rule."""

import numpy as np
import pytest
import torch

from neuron_sched_lab.course.checks.attention import (
    attend,
    combine,
    compare_attention,
    compare_combine,
    compare_gather,
    compare_merge,
    gather,
    merge,
)
from neuron_sched_lab.course.checks.result import NOT_RIGHT, NOT_SOLVED
from neuron_sched_lab.course.numpy_attention import as_kernel
from neuron_sched_lab.kernels import reference


def adds_up(state, scores, values):
    """Sums without a look at the largest score."""
    largest, total, out = state
    weights = np.exp(scores)
    return largest, total + weights.sum(axis=1), out + weights @ values


def forgets_to_rescale(state, scores, values):
    largest, total, out = state
    largest = np.maximum(largest, scores.max(axis=1))
    weights = np.exp(scores - largest[:, None])
    return largest, total + weights.sum(axis=1), out + weights @ values


def rescales_the_total_only(state, scores, values):
    largest, total, _ = merge(state, scores, values)
    weights = np.exp(scores - largest[:, None])
    return largest, total, state[2] + weights @ values


def largest_of_the_piece(state, scores, values):
    largest, total, out = state
    new = scores.max(axis=1)
    rescale, weights = np.exp(largest - new), np.exp(scores - new[:, None])
    return new, total * rescale, out * rescale[:, None] + weights @ values


def overwrites(state, scores, values):
    return merge((np.full(len(scores), -1e30), 0 * state[1], 0 * state[2]), scores, values)


def averages_the_pieces(q, k, v, mask, segment, merge):
    pieces = [slice(start, start + segment) for start in range(0, len(k), segment)]
    return np.mean([attend(q, k[p], v[p], mask[:, p], segment, merge) for p in pieces], axis=0)


def drops_the_rest(q, k, v, mask, segment, merge):
    n = max(len(k) // segment, 1) * segment
    return attend(q, k[:n], v[:n], mask[:, :n], segment, merge)


def forgets_the_mask(q, k, v, mask, segment, merge):
    return attend(q, k, v, 0 * mask, segment, merge)


def all_at_once(q, k, v, mask, segment, merge):
    return attend(q, k, v, mask, len(k), merge)


def multiplies_by_0(cache, block_table, num_tokens):
    rows = cache[block_table].reshape(-1, cache.shape[-1])
    return rows * (np.arange(len(rows)) < num_tokens)[:, None]


def in_block_order(cache, block_table, num_tokens):
    return gather(cache, np.sort(block_table), num_tokens)


def takes_one(one, other):
    return one


def adds_states(one, other):
    return one[0], one[1] + other[1], one[2] + other[2]


def rescales_the_first_only(one, other):
    largest = np.maximum(one[0], other[0])
    first = np.exp(one[0] - largest)
    return largest, one[1] * first + other[1], one[2] * first[:, None] + other[2]


WRONG = [
    (compare_merge, adds_up, "case 5 (scores in the thousands)", "no overflow"),
    (compare_merge, forgets_to_rescale, "case 3 (a second piece with larger", "rescale"),
    (compare_merge, rescales_the_total_only, "case 3 (a second piece with larger", "rescale"),
    (compare_merge, largest_of_the_piece, "case 1 (one piece)", "weights"),
    (compare_merge, overwrites, "case 2 (a second piece with smaller scores)", "accumulate"),
    (compare_attention, averages_the_pieces, "case 1 (8 keys in segments of 4)", "attention"),
    (compare_attention, drops_the_rest, "case 2 (10 keys in segments of 4", "attention"),
    (compare_attention, forgets_the_mask, "case 4 (40 keys in segments of 8", "attention"),
    (compare_attention, all_at_once, "merge got pieces of [8, 10, 5, 40] keys", "pieces"),
    (compare_gather, multiplies_by_0, "is nan in your result", "nothing behind the context"),
    (compare_gather, in_block_order, "case 1 (two full blocks)", "order"),
    (compare_combine, takes_one, "case 1 (the same largest score)", "sums"),
    (compare_combine, adds_states, "case 2 (the larger scores in the second", "rescale"),
    (compare_combine, rescales_the_first_only, "case 3 (the larger scores in the first", "rescale"),
]


@pytest.mark.parametrize(
    ("compare", "yours", "words", "rule"), WRONG, ids=[case[1].__name__ for case in WRONG]
)
def test_wrong_attention_is_told_the_case_and_the_rule(compare, yours, words, rule):
    result = compare(yours)
    assert result.status == NOT_RIGHT
    assert words in result.message
    assert result.details[0].startswith(f"rule broken: {rule} (")


@pytest.mark.parametrize(
    ("compare", "right"),
    [
        (compare_merge, merge),
        (compare_attention, attend),
        (compare_gather, gather),
        (compare_combine, combine),
    ],
)
def test_right_attention_is_solved(compare, right):
    assert compare(right).solved


def test_an_error_is_told_with_its_line():
    def misspelt(state, scores, values):
        return state.copy()

    result = compare_merge(misspelt)
    assert "case 1 (one piece): AttributeError" in result.message
    assert result.details == ("in your line: return state.copy()",)


def test_a_skeleton_is_not_solved_yet():
    def skeleton(state, scores, values):
        raise NotImplementedError

    assert compare_merge(skeleton).status == NOT_SOLVED


@pytest.mark.parametrize(("prior", "num_tokens"), [(0, 5), (11, 8), (16, 3)])
def test_numpy_attention_is_a_kernel_of_the_runner(prior, num_tokens):
    draw = torch.Generator().manual_seed(8)
    q = torch.randn(8, 4, 16, generator=draw)
    k, v = torch.randn(2, 8, 2, 16, generator=draw)
    k_cache, v_cache = torch.randn(2, 9, 2, 4, 16, generator=draw)
    table = torch.tensor([5, 2, 7, 1, 8, 3, -1, -1], dtype=torch.int32)
    counts = torch.tensor([[prior], [num_tokens]], dtype=torch.int32)
    arguments = (q, k, v, k_cache, v_cache, table, *counts, 8, 0.25)
    found = as_kernel(attend, merge, segment=3)(*arguments)[:num_tokens]
    expected = reference.segmented_attention(*arguments)[:num_tokens]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
