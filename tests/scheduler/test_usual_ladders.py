"""Other people's ladders by their makers' own examples, and the comparison."""

from functools import partial

import numpy as np
import pytest

from neuron_sched_lab.scheduler.buckets import powers_of_two_ladder, validate_buckets
from neuron_sched_lab.scheduler.ladders import optimal_buckets, pad_lengths, padding_waste
from neuron_sched_lab.scheduler.usual_ladders import (
    compare_ladders,
    evaluate_held_out,
    gap_ladder,
    linear_ladder,
    padding_aware_ladder,
    usual_ladders,
)


@pytest.mark.parametrize(
    ("gap", "ladder"),
    [
        (64, [16, 32, 64, 128, 192, 256]),
        (256, [16, 32, 64, 128, 256]),
        (100, [16, 32, 64, 164, 256]),
        (8, [16, *range(24, 256, 8), 256]),
    ],
)
def test_gap(gap, ladder):
    assert gap_ladder(16, 256, gap) == ladder


@pytest.mark.parametrize(
    ("settings", "ladder"),
    [((2, 64, 32), [2, 4, 8, 16, 32, 64]), ((3, 40, 10), [3, 6, 10, 20, 30, 40])],
)
def test_linear(settings, ladder):
    assert linear_ladder(*settings) == ladder


@pytest.mark.parametrize(
    ("settings", "max_padding", "percent", "ladder"),
    [
        # The examples of vllm-gaudi's docstring, without its bucket 0.
        ((1, 64, 8), 64, 0, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]),
        ((1, 64, 8), 64, 50, [1, 2, 4, 8, 16, 32, 64]),
        ((1, 64, 8), 16, 50, [1, 2, 4, 8, 16, 32, 48, 64]),
        ((16, 128, 16), 32, 25, [16, 32, 48, 64, 80, 96, 128]),
        # 48 is kept as a multiple of the padding limit; the limits alone would allow 64 next.
        ((16, 256, 16), 48, 50, [16, 32, 48, 96, 144, 192, 240, 256]),
    ],
)
def test_padding_aware(settings, max_padding, percent, ladder):
    limits = {"max_padding": max_padding, "max_padding_percent": percent}
    assert padding_aware_ladder(*settings, **limits) == ladder


def test_all_end_with_the_maximum_whatever_it_is():
    for last in [*range(1, 300), 1000, 8192, 131_072]:
        for name, ladder in usual_ladders(last).items():
            assert validate_buckets(name, ladder, last=last, last_rule="max") == tuple(ladder)


def test_padding_aware_keeps_its_limits():
    """A quarter of the tensor at most, or less than a step, which no ladder of such steps beats."""
    lengths = np.arange(257, 8193)
    buckets = pad_lengths(lengths, padding_aware_ladder(128, 8192, 128, max_padding=1000))
    padding = buckets - lengths
    assert (padding <= np.maximum(buckets * 0.25, 127)).all()
    assert 800 < padding.max() <= 1000


def test_compare():
    scores = compare_ladders([3, 5, 9], {"one": [10], "two": [5, 10]}, cost=lambda size: size / 10)
    assert [(s.name, s.num_graphs, s.padded_tokens, s.cost) for s in scores] == [
        ("one", 1, 30, 3.0),
        ("two", 2, 20, 2.0),
    ]
    assert [s.waste for s in scores] == pytest.approx([13 / 30, 3 / 20])
    assert compare_ladders([3], {"one": [10]})[0].cost is None


def test_the_fitted_ladder_wins_where_it_was_fitted():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(6, 1, 5_000).astype(int) + 1, 8192)
    usual = usual_ladders(8192)
    for score in compare_ladders(lengths, usual):
        fitted = optimal_buckets(lengths, score.num_graphs, max_num_batched_tokens=8192)
        assert padding_waste(lengths, fitted) <= score.waste


class TestHeldOut:
    fit = staticmethod(partial(optimal_buckets, count=3, max_num_batched_tokens=100))

    def test_the_past_fits_the_past(self):
        result = evaluate_held_out(np.array([10, 20, 10, 20, 30, 40, 30, 40]), self.fit)
        assert result.ladder == (10, 20, 100)
        assert result.fit_waste == 0
        assert result.test_waste == pytest.approx(1 - 140 / 400)
        assert result.best_waste == 0

    def test_too_few(self):
        with pytest.raises(ValueError, match="lengths: 1 of them"):
            evaluate_held_out(np.array([3]), self.fit)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gap_ladder(16, 256, 0), "gap: 0 must be at least 1"),
        (lambda: linear_ladder(16, 8, 8), "first: 16 must not exceed last = 8"),
        (lambda: padding_aware_ladder(1, 8, 1, max_padding=0), "max_padding: 0 must be"),
        (lambda: padding_aware_ladder(1, 8, 1, max_padding_percent=51), "max_padding_percent: 51"),
        (lambda: powers_of_two_ladder(1, 0), "last: 0 must be at least 1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
