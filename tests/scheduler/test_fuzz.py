"""Seeded random runs of the real scheduler classes, checked after every step.

Each run draws its settings (tight and roomy KV caches, one slot, one bucket, both policies,
prefix caching, both output forms) and then a life of arrivals, aborts, cache resets, pauses and
grammar waits. vLLM's own classes run first: they validate the oracle and the checks.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    HoldReason,
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from tests.scheduler.factory import make_scheduler
from tests.scheduler.harness import MAX_STEPS, Driver, Step
from tests.scheduler.invariants import check_finished, watchers_for


class AsyncPaddedScheduler(PaddedScheduler, AsyncScheduler):
    """Async without the KV bound: preempts with output in flight."""


STEPS_PER_TEST = 5_000
SEEDS_PER_CLASS = {
    Scheduler: 2,
    AsyncScheduler: 2,
    HoldbackScheduler: 2,
    SeparatedScheduler: 3,
    PaddedScheduler: 3,
    AsyncPaddedScheduler: 3,
    KVAdmissionScheduler: 3,
    NeuronScheduler: 4,
    NeuronAsyncScheduler: 4,
}
CASES = [(cls, seed) for cls, seeds in SEEDS_PER_CLASS.items() for seed in range(seeds)]
MIN_STEPS = 100_000

USUAL_STOP_TOKENS = [3, 5, 8]


def draw_settings(rng: random.Random, cls: type[Scheduler]) -> dict:
    """Draw settings for make_scheduler(); any request of max_model_len fits the KV cache."""
    block_size = rng.choice([4, 8, 16])
    max_model_len = rng.choice([48, 64, 96, 100])
    max_num_batched_tokens = rng.choice([8, 16, 32, 50, 128])
    max_num_seqs = rng.choice([1, 2, 3, 4, 6])
    blocks_per_request = -(-max_model_len // block_size)
    concurrent = rng.choice([1, 1.5, 2, 2.5, max_num_seqs])
    # Exact multiples without the null block are one of the seed's holes (B1).
    num_blocks = max(int(concurrent * blocks_per_request), blocks_per_request)
    longest_chunk = min(max_num_batched_tokens, max_model_len)
    ladder = rng.choice([[longest_chunk], [8, 16, 32, 64, 96], None])
    if ladder is not None:
        ladder = [b for b in ladder if b < longest_chunk] + [longest_chunk]
    neuron_config = {"num_batched_tokens_buckets": ladder} if ladder else {}
    if rng.random() < 0.3:
        neuron_config["max_consecutive_prefills"] = rng.choice([1, 3])
    elif rng.random() < 0.3:
        neuron_config["max_decode_stall_tokens"] = longest_chunk * rng.choice([1, 2]) + 3
    return {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max(max_num_batched_tokens, max_num_seqs),
        "max_num_seqs": max_num_seqs,
        "num_blocks": num_blocks + rng.choice([1, 1, 2]),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "prefix_caching": rng.random() < 0.5,
        "neuron_config": neuron_config,
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.1]),
        "reserve_full_isl": rng.random() < 0.7,
        "v2_output_form": rng.random() < 0.25,
        # vLLM's own classes let others overtake a request whose adapter does not fit.
        "max_loras": rng.choice([None, None, 1, 2]) if issubclass(cls, HoldbackScheduler) else None,
        "async_scheduling": issubclass(cls, AsyncScheduler),
    }


class Life:
    """Users of one scheduler: what arrives, goes away and interferes, drawn from a seed."""

    def __init__(self, rng: random.Random, driver: Driver, num_requests: int) -> None:
        self.rng = rng
        self.driver = driver
        self.num_requests = num_requests
        self.arrival_chance = rng.choice([0.1, 0.3, 0.6, 1.0])
        self.grammar_chance = rng.choice([0.0, 0.0, 0.3])
        self.abort_chance = rng.choice([0.0, 0.02])
        self.reset_chance = rng.choice([0.0, 0.0, 0.02])
        self.pause_chance = rng.choice([0.0, 0.0, 0.02])
        self.throttle_cadence = rng.choice([1, 1, 1, 4])
        self.shared_prefix = [rng.randrange(251) for _ in range(driver.scheduler.max_model_len)]
        self.events: Counter[str] = Counter()
        self.unpause_at: int | None = None

    def live(self) -> None:
        """Run until `num_requests` have come and gone."""
        driver, rng = self.driver, self.rng
        while len(driver.requests) < self.num_requests or not driver.done:
            assert driver.steps < MAX_STEPS, f"still at work: {driver.unfinished}"
            while len(driver.requests) < self.num_requests and (
                driver.done or rng.random() < self.arrival_chance
            ):
                self.arrive()
            if driver.unfinished and rng.random() < self.abort_chance:
                driver.abort(rng.choice(driver.unfinished))
                self.events["abort"] += 1
            if rng.random() < self.reset_chance:
                driver.reset(running=rng.random() < 0.7)
                self.events["reset"] += 1
            self.pause_or_resume()
            driver.throttle_prefills = driver.steps % self.throttle_cadence != 0
            self.count(driver.step())

    def count(self, step: Step) -> None:
        self.events["step"] += 1
        self.events["empty step"] += step.empty
        self.events["preemption"] += len(step.preempted)
        reason = getattr(self.driver.scheduler, "hold_reason", None)
        self.events["adapter hold"] += reason is HoldReason.ADAPTERS_FULL
        self.events["prefix hit"] += sum(
            new.num_computed_tokens > 0 for new in step.output.scheduled_new_reqs
        )

    def arrive(self) -> None:
        driver, rng = self.driver, self.rng
        max_model_len = driver.scheduler.max_model_len
        length = rng.choice([1, rng.randrange(1, 20), rng.randrange(1, max_model_len)])
        shared = rng.choice([0, length // 2, length])
        own = [rng.randrange(251) for _ in range(length - shared)]
        grammar = rng.random() < self.grammar_chance
        driver.add(
            f"r{len(driver.requests)}",
            self.shared_prefix[:shared] + own,
            max_tokens=rng.choice([1, rng.randrange(1, 20), rng.randrange(1, max_model_len)]),
            priority=rng.choice([0, 0, 1, 2]),
            arrival_time=float(len(driver.requests) // 2),
            stop_token_ids=rng.choice([None, None, USUAL_STOP_TOKENS]),
            grammar_delay=rng.randrange(12) if grammar else None,
            grammar_error=rng.random() < 0.2,
            adapter=rng.choice([None, 1, 2, 3]) if driver.scheduler.lora_config else None,
        )
        self.events["grammar"] += grammar

    def pause_or_resume(self) -> None:
        driver, rng = self.driver, self.rng
        if self.unpause_at is not None:
            if driver.steps >= self.unpause_at:
                driver.pause(PauseState.UNPAUSED)
                self.unpause_at = None
        elif rng.random() < self.pause_chance:
            driver.pause(rng.choice([PauseState.PAUSED_NEW, PauseState.PAUSED_ALL]))
            self.unpause_at = driver.steps + rng.randrange(1, 20)
            self.events["pause"] += 1


def run_once(
    cls: type[Scheduler],
    seed: int,
    change: Callable[[random.Random, dict], None] = lambda rng, settings: None,
    watchers: Iterable[Callable[[Driver, Step], None]] = (),
) -> Counter:
    """One random run, checked throughout; returns counts of what happened in it.

    `change` may alter the settings drawn; `watchers` check more.
    """
    rng = random.Random(seed)
    settings = draw_settings(rng, cls)
    change(rng, settings)
    depth = rng.choice([1, 1, 2]) if settings["async_scheduling"] else 0
    driver = Driver(make_scheduler(cls, **settings), depth)
    driver.watchers += [*watchers_for(driver.scheduler), *watchers]
    life = Life(rng, driver, num_requests=rng.randrange(5, 40))
    try:
        life.live()
        check_finished(driver)
    except Exception as error:
        raise AssertionError(
            f"{cls.__name__}, seed {seed}, step {driver.steps}, depth {depth}: {error!r}\n"
            f"settings: {settings}"
        ) from error
    return life.events


@pytest.fixture(scope="module")
def totals(request):
    """Collects what happened in all runs and reports it once."""
    counts: Counter[str] = Counter()
    yield counts
    text = ", ".join(f"{count:,} {name}s" for name, count in sorted(counts.items()))
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\nrandom runs: {text}")


@pytest.mark.parametrize(
    ("cls", "seed"), CASES, ids=[f"{cls.__name__}-{seed}" for cls, seed in CASES]
)
def test_random_runs(cls, seed, totals):
    steps = 0
    for run in itertools.count():
        if steps >= STEPS_PER_TEST:
            break
        counts = run_once(cls, 1_000_000 * seed + run)
        totals.update(counts)
        steps += counts["step"]


def test_random_runs_are_enough_in_all():
    assert len(CASES) * STEPS_PER_TEST >= MIN_STEPS
