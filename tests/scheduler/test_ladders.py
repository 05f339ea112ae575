"""Fitted ladders: equal to brute force, and to the known answers on public traces."""

import itertools
import math
import random

import numpy as np
import pytest

from neuron_sched_lab.scheduler import ladders
from neuron_sched_lab.scheduler.buckets import (
    get_bucket_for_count,
    powers_of_two_ladder,
    validate_buckets,
)
from neuron_sched_lab.scheduler.ladders import (
    chunk_lengths,
    optimal_buckets,
    pad_lengths,
    padding_waste,
)
from tests.scheduler.traces import MISSING, azure_lengths


def total_cost(lengths, ladder, cost) -> float:
    return sum(cost(get_bucket_for_count(length, ladder)) for length in lengths)


def brute_force(lengths, count, last, granule, fixed, cost) -> float:
    """The least cost of all ladders that obey the rules."""
    members = {*fixed, last}
    free = sorted({*range(granule, last, granule)} - members)
    return min(
        total_cost(lengths, sorted({*members, *more}), cost)
        for size in range(count - len(members) + 1)
        for more in itertools.combinations(free, size)
    )


@pytest.mark.parametrize("kind", ["tokens", "ascending", "any"])
def test_equal_to_brute_force(kind):
    rng = random.Random(kind)
    for _ in range(300):
        last = rng.randint(1, 14)
        granule = rng.choice([1, 1, 2, 3])
        lengths = [rng.randint(1, last) for _ in range(rng.randint(1, 12))]
        fixed = rng.sample(range(1, last + 1), rng.randint(0, min(2, last)))
        count = len({*fixed, last}) + rng.randint(0, 3)
        times = [rng.randint(0, 20) for _ in range(last + 1)]
        times = sorted(times) if kind == "ascending" else times
        cost = None if kind == "tokens" else times.__getitem__
        case = {"granule": granule, "fixed": fixed, "cost": cost, "max_num_batched_tokens": last}
        ladder = optimal_buckets(lengths, count, **case)
        assert len(ladder) <= count
        assert {*fixed, last} <= set(ladder)
        assert all(b % granule == 0 for b in ladder if b not in fixed and b != last)
        assert validate_buckets("x", ladder, last=last, last_rule="last") == tuple(ladder)
        cost = cost or (lambda size: size)
        least = brute_force(lengths, count, last, granule, fixed, cost)
        assert total_cost(lengths, ladder, cost) == least, (lengths, count, case, ladder)


def test_halving_and_the_full_search_agree_on_larger_inputs():
    """One step dearer than the next forces the full search; too small a step to matter."""
    rng = np.random.default_rng(0)
    for count in (2, 5, 9):
        lengths = rng.integers(1, 700, 300)

        def falling_once(size: int) -> float:
            return 2_000.5 if size == 1_999 else size

        settings = {"max_num_batched_tokens": 2_000, "granule": 1}
        by_halves = optimal_buckets(lengths, count, cost=float, **settings)
        in_full = optimal_buckets(lengths, count, cost=falling_once, **settings)
        assert pad_lengths(lengths, by_halves).sum() == pad_lengths(lengths, in_full).sum()


def test_no_more_buckets_than_help():
    assert optimal_buckets([3, 3, 7], 9, max_num_batched_tokens=10) == [3, 7, 10]


def test_a_cost_with_steps_moves_the_buckets_to_their_edges():
    """A kernel that works in tiles of 128 tokens: 129 tokens cost what 256 do."""

    def tiles(size: int) -> int:
        return -(-size // 128)

    lengths = [100, 129, 200, 250]
    ladder = optimal_buckets(lengths, 3, max_num_batched_tokens=1024, granule=64, cost=tiles)
    assert ladder == [128, 256, 1024]
    assert total_cost(lengths, ladder, tiles) == 1 + 2 + 2 + 2


@pytest.mark.parametrize(
    ("name", "powers_of_two", "optimum"), [("azure_code", 27.7, 19.1), ("azure_conv", 30.4, 13.0)]
)
def test_known_answers(name, powers_of_two, optimum):
    lengths = azure_lengths(name)
    if lengths is None:
        pytest.skip(MISSING.format(name=name))
    chunks = chunk_lengths(lengths[:, 0], 8192)
    ladder = powers_of_two_ladder(128, 8192)
    assert len(ladder) == 7
    assert round(100 * padding_waste(chunks, ladder), 1) == powers_of_two
    fitted = optimal_buckets(chunks, 7, max_num_batched_tokens=8192, granule=16)
    assert len(fitted) == 7
    assert round(100 * padding_waste(chunks, fitted), 1) == optimum


@pytest.mark.parametrize("n", [1024, 8192])
def test_a_search_tries_n_log_n_cuts(n, monkeypatch):
    """That is what makes a million lengths quick; benchmarks/ladders.py says how quick."""
    num_tried = []

    class Counting(np.ndarray):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            num_tried[-1] += found.size
            return found

    def counting_search(offset, *args, search=ladders._search_by_halves):
        num_tried.append(0)
        return tuple(map(np.asarray, search(offset.view(Counting), *args)))

    monkeypatch.setattr(ladders, "_search_by_halves", counting_search)
    lengths = np.random.default_rng(0).integers(1, n + 1, 1_000_000)
    ladder = optimal_buckets(lengths, 8, max_num_batched_tokens=n)
    assert len(ladder) == 8
    assert len(num_tried) == 7  # one search for each bucket but the last
    assert all(n < tried < n * (math.log2(n) + 2) for tried in num_tried)


@pytest.mark.parametrize(
    ("prompts", "chunks"),
    [
        ([1], [1]),
        ([8], [8]),
        ([9], [8, 1]),
        ([16, 3, 17], [8, 8, 3, 8, 8, 1]),
        ([0, 5, 0, 0, 8, 0], [5, 8]),
        ([], []),
    ],
)
def test_chunks(prompts, chunks):
    assert chunk_lengths(prompts, 8).tolist() == chunks


def test_pad_lengths_is_the_lookup_for_arrays():
    ladder = [3, 8, 20]
    assert pad_lengths(range(1, 21), ladder).tolist() == [
        get_bucket_for_count(count, ladder) for count in range(1, 21)
    ]


def test_waste():
    assert padding_waste([2, 4], [4]) == pytest.approx(2 / 8)
    assert padding_waste([], [4]) == 0


def test_float_costs_are_exact_enough():
    lengths = np.random.default_rng(1).integers(1, 400, 500).tolist()

    def roofline(size: int) -> float:
        return 1e-3 + max(3.1e-6 * size, 2.2e-4)

    ladder = optimal_buckets(lengths, 3, max_num_batched_tokens=400, cost=roofline, granule=10)
    least = brute_force(lengths, 3, 400, 10, [], roofline)
    assert total_cost(lengths, ladder, roofline) == pytest.approx(least, rel=1e-12)


FIT = {"max_num_batched_tokens": 100}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimal_buckets([], 3, **FIT), "lengths: there are none"),
        (lambda: optimal_buckets([101], 3, **FIT), "lengths: the longest is 101"),
        (lambda: optimal_buckets([0], 3, **FIT), "lengths: 0 must be at least 1"),
        (lambda: optimal_buckets([1.5], 3, **FIT), "lengths: dtype float64 must be an integer"),
        (lambda: optimal_buckets([[1]], 3, **FIT), r"lengths: shape \(1, 1\)"),
        (lambda: optimal_buckets([1], 0, **FIT), "count: 0 must be at least 1"),
        (lambda: optimal_buckets([1], 1, fixed=[5], **FIT), r"count: 1 must be at least 2.*5, 100"),
        (lambda: optimal_buckets([1], 3, fixed=[101], **FIT), "fixed: 101 must lie between"),
        (lambda: optimal_buckets([1], 3, fixed=[0], **FIT), "fixed: 0 must lie between"),
        (lambda: optimal_buckets([1], 3, granule=0, **FIT), "granule: 0 must be at least 1"),
        (
            lambda: optimal_buckets([1], 3, cost=lambda size: -size, **FIT),
            r"cost: cost\(1\) = -1.0 must be",
        ),
        (
            lambda: optimal_buckets([1], 3, cost=lambda size: float("nan"), **FIT),
            r"cost: cost\(1\) = nan must be",
        ),
        (
            lambda: optimal_buckets(
                [1], 3, cost=lambda size: size % 2, max_num_batched_tokens=100_000
            ),
            "cost: it falls somewhere, and 100000 sizes are too many",
        ),
        (lambda: chunk_lengths([1], 0), "max_num_batched_tokens: 0 must be at least 1"),
        (lambda: chunk_lengths([-1], 8), "prompt_lengths: -1 must be at least 0"),
        (lambda: pad_lengths([9], [8]), "lengths: 9 does not fit the largest bucket 8"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
