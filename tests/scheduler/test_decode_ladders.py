"""Decode ladders in two dimensions: near the best of all, and the bound is one."""

import itertools
import random

import numpy as np
import pytest

from neuron_sched_lab.scheduler.decode_ladders import kv_tokens_read, optimize_decode_ladders

COSTS = {
    "product": kv_tokens_read,
    "sum": lambda batch, context: 3 * batch + context,
    "roofline": lambda batch, context: np.maximum(2 * batch, context),
}


def ladders_of(last: int):
    for size in range(last):
        for members in itertools.combinations(range(1, last), size):
            yield (*members, last)


def cost_of(pair, batches, contexts, cost) -> float:
    def pad(values, ladder):
        return np.asarray(ladder)[np.searchsorted(ladder, values)]

    batch_ladder, context_ladder = pair
    return float(cost(pad(batches, batch_ladder), pad(contexts, context_ladder)).sum())


@pytest.mark.parametrize("name", COSTS)
def test_against_all_pairs(name):
    rng = random.Random(name)
    optimal = 0
    for _ in range(60):
        max_num_seqs, max_model_len = rng.randint(1, 5), rng.randint(1, 6)
        steps = rng.randint(1, 30)
        batches = [rng.randint(1, max_num_seqs) for _ in range(steps)]
        contexts = [rng.randint(1, max_model_len) for _ in range(steps)]
        num_graphs = rng.randint(1, 8)
        result = optimize_decode_ladders(
            batches,
            contexts,
            num_graphs,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            granule=1,
            cost=COSTS[name],
        )
        pair = result.num_seqs_buckets, result.context_buckets
        assert result.num_graphs == len(pair[0]) * len(pair[1]) <= num_graphs
        assert result.cost == pytest.approx(cost_of(pair, batches, contexts, COSTS[name]))
        least = min(
            cost_of(other, batches, contexts, COSTS[name])
            for other in itertools.product(ladders_of(max_num_seqs), ladders_of(max_model_len))
            if len(other[0]) * len(other[1]) <= num_graphs
        )
        assert result.bound <= least * (1 + 1e-12)
        assert least <= result.cost * (1 + 1e-12)
        assert result.cost <= 1.05 * least
        assert result.gap >= result.cost / least - 1 - 1e-12
        optimal += result.cost <= least * (1 + 1e-12)
    assert optimal >= 55


def test_a_second_turn_pays():
    """Fitted once each, batches to contexts and contexts to batches, the pair costs 85."""
    result = optimize_decode_ladders(
        [7, 4, 1, 5, 4], [1, 5, 2, 5, 1], 4, max_num_seqs=7, max_model_len=5, granule=1
    )
    assert result.cost == 84


def test_enough_graphs_fit_every_step():
    result = optimize_decode_ladders(
        [1, 2, 2], [100, 128, 200], 6, max_num_seqs=4, max_model_len=300
    )
    assert result.num_seqs_buckets == (1, 2, 4)
    assert result.context_buckets == (128, 300)
    assert result.cost == 128 + 2 * 128 + 2 * 300
    # Steps are counted with their context aligned: 200 tokens need the 256 that lie below 300.
    assert result.unpadded_cost == 128 + 2 * 128 + 2 * 256


def test_contexts_are_multiples_of_the_granule_except_the_last():
    rng = np.random.default_rng(0)
    result = optimize_decode_ladders(
        rng.integers(1, 9, 500), rng.integers(1, 1001, 500), 12, max_num_seqs=8, max_model_len=1000
    )
    assert all(bucket % 128 == 0 for bucket in result.context_buckets[:-1])
    assert (result.num_seqs_buckets[-1], result.context_buckets[-1]) == (8, 1000)
    assert 0 <= result.gap < 0.2


def decode_ladders(batches=(1,), contexts=(1,), num_graphs=4, **changes):
    limits = {"max_num_seqs": 4, "max_model_len": 64, "granule": 1, **changes}
    return optimize_decode_ladders(batches, contexts, num_graphs, **limits)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode_ladders(num_graphs=0), "num_graphs: 0 must be at least 1"),
        (lambda: decode_ladders(batches=[5]), "batches: 5 must lie between 1 and max_num_seqs = 4"),
        (lambda: decode_ladders(contexts=[0]), "contexts: 0 must lie between 1 and max_model_len"),
        (lambda: decode_ladders(contexts=[1, 2]), "contexts: 2 of them for 1 batches"),
        (lambda: decode_ladders(batches=[1.5]), "batches: shape .* must be a row of integers"),
        (lambda: decode_ladders(batches=[]), "batches: shape .* must be a row of integers"),
        (lambda: decode_ladders(cost=lambda b, c: -b * c), "cost: every value must be"),
        (lambda: decode_ladders(cost=lambda b, c: 1 / (b * c)), "cost: it falls for a larger"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
