"""Workloads: what they hold, how they are changed, and the generators."""

import math
from itertools import pairwise
from statistics import fmean

import pytest

from neuron_sched_lab.workloads import generators
from neuron_sched_lab.workloads.request import FILLER_TOKEN, WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload


def request(request_id="r0", arrival=0.0, prompt=10, output=5, **rest):
    return WorkloadRequest(request_id, arrival, prompt, output, **rest)


def open_loop(*arrivals):
    return Workload("w", tuple(request(f"r{i}", t) for i, t in enumerate(arrivals)))


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([request(), request()], "request 'r0': the id stands twice"),
        ([request(prompt=0)], "0 prompt and 5 output tokens; both must be at least 1"),
        ([request(output=0)], "10 prompt and 0 output tokens"),
        ([request(arrival=-1.0)], "arrival_seconds -1.0 must be finite and not negative"),
        ([request(arrival=math.nan)], "arrival_seconds nan must be finite"),
        ([request(arrival=math.inf)], "arrival_seconds inf must be finite"),
        ([request("a", 2.0), request("b", 1.0)], "request 'b': arrives at 1.0, before its predec"),
        ([request("a", after="b"), request("b")], "request 'a': waits for 'b', which does not"),
        ([request(prompt_token_ids=(1, 2))], "2 prompt_token_ids, but num_prompt_tokens 10"),
    ],
)
def test_what_no_engine_could_run_is_refused(requests, message):
    with pytest.raises(ValueError) as error:
        Workload("w", tuple(requests))
    assert message in str(error.value)


def test_scale_makes_arrivals_and_pauses_faster():
    workload = Workload("w", (request("a", 4.0), request("b", 2.0, after="a")))
    assert [r.arrival_seconds for r in workload.scale(2)] == [2.0, 1.0]
    with pytest.raises(ValueError, match="rate: 0 must be above 0"):
        workload.scale(0)


def test_slice_takes_a_window_and_sets_the_clock_to_its_start():
    cut = open_loop(0.0, 1.0, 2.0, 3.0).slice(1.0, 3.0)
    assert [(r.request_id, r.arrival_seconds) for r in cut] == [("r1", 0.0), ("r2", 1.0)]


def test_a_closed_loop_has_no_times_to_slice():
    with pytest.raises(ValueError, match="slice: .* is closed-loop"):
        generators.closed_loop(2, 4).slice(0, 1)


def test_time_warp_must_keep_the_order():
    workload = open_loop(0.0, 1.0, 2.0)
    assert [r.arrival_seconds for r in workload.time_warp(lambda t: t * t)] == [0.0, 1.0, 4.0]
    with pytest.raises(ValueError, match="before its predecessor"):
        workload.time_warp(lambda t: 2 - t)


def test_fit_drops_prompts_that_are_too_long_and_those_who_wait_for_them():
    workload = Workload(
        "w",
        (request("a", prompt=90, output=50), request("b", prompt=100), request("c", after="b")),
    )
    fitting = workload.fit(100)
    assert [(r.request_id, r.num_output_tokens) for r in fitting] == [("a", 10)]
    assert fitting.num_skipped == 2


def test_rate_and_description():
    workload = open_loop(0.0, 1.0, 2.0)
    assert workload.requests_per_second == 1.0
    assert workload.describe().startswith("w: 3 requests, 1 requests/s, prompts of 10 tokens")
    assert Workload("none", ()).describe() == "none: no requests, 0 rows skipped"
    assert generators.closed_loop(2, 4).requests_per_second == 0.0


def test_prompts_share_exactly_the_hashed_prefix():
    workload = Workload(
        "w",
        (
            request("a", prompt=10, prefix_hash_ids=(7, 8)),
            request("b", prompt=10, prefix_hash_ids=(7, 9)),
            request("c", prompt=6, prefix_hash_ids=(7,)),
            request("d", prompt=3),
            request("e", prompt=3),
        ),
        hash_block_tokens=4,
    )
    a, b, c, d, e = (workload.prompt_token_ids(i) for i in range(5))
    assert [len(p) for p in (a, b, c, d, e)] == [10, 10, 6, 3, 3]
    assert a[:4] == b[:4] == c[:4]
    assert a[4] != b[4]
    assert c[4] not in {a[4], b[4]}
    assert d[0] != e[0]


GENERATORS = {
    "poisson": lambda seed: generators.poisson(5, 400, seed=seed),
    "bursty": lambda seed: generators.bursty(5, 400, burstiness=0.2, seed=seed),
    "long_context": lambda seed: generators.long_context(5, 400, long_share=0.1, seed=seed),
    "shared_prefix": lambda seed: generators.shared_prefix(5, 400, seed=seed),
    "closed_loop": lambda seed: generators.closed_loop(4, 400, think_seconds=1, seed=seed),
    "chat_turns": lambda seed: generators.chat_turns(5, 100, seed=seed),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_gives_the_same_requests_and_another_seed_others(name):
    make = GENERATORS[name]
    assert make(1) == make(1)
    assert make(1) != make(2)


@pytest.mark.parametrize("name", ["poisson", "bursty", "long_context", "shared_prefix"])
def test_the_rate_is_the_one_asked_for(name):
    rates = [GENERATORS[name](seed).requests_per_second for seed in range(20)]
    assert fmean(rates) == pytest.approx(5, rel=0.15)


def gaps(workload):
    times = [r.arrival_seconds for r in workload]
    return [b - a for a, b in pairwise(times)]


def test_burstiness_is_the_spread_of_the_gaps():
    def variation(burstiness):
        values = gaps(generators.bursty(5, 4000, burstiness=burstiness))
        mean = fmean(values)
        return math.sqrt(fmean((v - mean) ** 2 for v in values)) / mean

    # A gamma distribution of shape k varies by 1 / sqrt(k).
    assert variation(0.25) == pytest.approx(2, rel=0.2)
    assert variation(1) == pytest.approx(1, rel=0.1)
    assert variation(4) == pytest.approx(0.5, rel=0.1)


def test_lengths_are_exact_or_spread_around_the_median():
    exact = generators.poisson(5, 50, prompt=100, output=7)
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in exact} == {(100, 7)}
    spread = sorted(r.num_prompt_tokens for r in generators.poisson(5, 4000, prompt=(100, 0.5)))
    assert spread[2000] == pytest.approx(100, rel=0.1)
    assert spread[0] < 60 and spread[-1] > 200


def test_each_user_of_a_closed_loop_waits_for_the_own_answer():
    workload = generators.closed_loop(3, 7)
    assert [r.after for r in workload] == [None, None, None, "r0", "r1", "r2", "r3"]


def test_a_turn_begins_with_all_that_was_said_before():
    workload = generators.chat_turns(2, 30, num_turns=5, system_tokens=16)
    by_id = {r.request_id: r for r in workload}
    followed = 0
    for turn in workload:
        if turn.after is not None:
            before = by_id[turn.after]
            said = (*before.prompt_token_ids, *[FILLER_TOKEN] * before.num_output_tokens)
            assert turn.prompt_token_ids[: len(said)] == said
            assert len(turn.prompt_token_ids) > len(said)
            followed += 1
    assert followed > 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: generators.poisson(0, 5), "requests_per_second: 0 must be above 0"),
        (lambda: generators.bursty(1, 5, burstiness=-1), "burstiness: -1 must be above 0"),
        (lambda: generators.closed_loop(0, 5), "num_users: 0 must be an int of at least 1"),
        (lambda: generators.poisson("a", 5), "requests_per_second: 'a' must be above 0"),
        (lambda: generators.poisson(1, -3), "num_requests: -3 must be an int of at least 1"),
        (lambda: generators.poisson(1, 2.5), "num_requests: 2.5 must be an int of at least 1"),
        (
            lambda: generators.shared_prefix(1, 3, prefix_blocks="x"),
            "prefix_blocks: 'x' must be an int of at least 1",
        ),
        (
            lambda: generators.closed_loop(2, 3, think_seconds=-1),
            "think_seconds: -1 must be 0 or more",
        ),
        (lambda: generators.long_context(1, 5, long_share="x"), "long_share: 'x' must be between"),
        (lambda: generators.poisson(1, 3, prompt=(0, 1)), "a length: .0, 1. must be a number"),
        (lambda: generators.poisson(1, 3, prompt="x"), "a length: 'x' must be a number of tokens"),
        (lambda: generators.long_context(1, 5, long_share=2), "long_share: 2 must be between"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
