"""Ladders: lookup, defaults, validation."""

import pytest

from neuron_sched_lab.scheduler.buckets import (
    get_bucket_for_count,
    get_default_num_batched_tokens_buckets,
    get_default_num_seqs_buckets,
    validate_buckets,
)

LADDER = [128, 256, 512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize(
    ("count", "bucket"),
    [(1, 128), (50, 128), (127, 128), (128, 128), (129, 256), (1500, 2048), (5000, 8192)],
)
def test_smallest_bucket_that_holds_the_count(count, bucket):
    assert get_bucket_for_count(count, LADDER) == bucket


def test_every_count_against_the_definition():
    for count in range(1, 2049):
        assert get_bucket_for_count(count, LADDER) == min(b for b in LADDER if b >= count)


@pytest.mark.parametrize("count", [0, -1, 8193])
def test_a_count_without_a_bucket_is_refused(count):
    with pytest.raises(ValueError, match=rf"count: {count} "):
        get_bucket_for_count(count, LADDER)


@pytest.mark.parametrize(
    ("maximum", "ladder"),
    [
        (8192, LADDER),
        (1000, [128, 256, 512, 1000]),
        (128, [128]),
        (100, [100]),
        (1, [1]),
        (129, [128, 129]),
    ],
)
def test_default_prefill_ladder_is_closed_by_the_maximum(maximum, ladder):
    assert get_default_num_batched_tokens_buckets(maximum) == ladder


@pytest.mark.parametrize(
    ("maximum", "ladder"), [(8, [1, 2, 4, 8]), (6, [1, 2, 4, 6]), (1, [1]), (3, [1, 2, 3])]
)
def test_default_decode_ladder_is_closed_by_the_maximum(maximum, ladder):
    assert get_default_num_seqs_buckets(maximum) == ladder


def test_default_ladders_obey_their_own_validation():
    for maximum in range(1, 3000):
        for default in (get_default_num_batched_tokens_buckets, get_default_num_seqs_buckets):
            ladder = default(maximum)
            assert validate_buckets("x", ladder, last=maximum, last_rule="max") == tuple(ladder)


@pytest.mark.parametrize("maximum", [0, -5])
def test_a_maximum_below_one_has_no_ladder(maximum):
    with pytest.raises(ValueError, match="at least 1"):
        get_default_num_seqs_buckets(maximum)
