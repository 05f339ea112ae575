"""Prefill pacing in tokens: max_decode_stall_tokens, the finer form of max_consecutive_prefills."""

import itertools
from collections import Counter

import pytest

from neuron_sched_lab.scheduler import (
    HoldReason,
    NeuronAsyncScheduler,
    NeuronScheduler,
    SeparatedScheduler,
)
from tests.scheduler.holes import drive, finish
from tests.scheduler.test_fuzz import run_once

LADDER = [16, 32, 64, 128]


def steps_between_decodes(cls, limit: int, prompt: int) -> set[int]:
    """How many prefill steps in a row A's decode waits for, while prompts keep coming."""
    driver = drive(
        cls,
        max_num_seqs=128,
        num_blocks=2_000,
        neuron_config={"num_batched_tokens_buckets": LADDER, "max_decode_stall_tokens": limit},
    )
    driver.add("A", 16, max_tokens=12)
    for i in range(100):
        driver.add(f"p{i}", prompt, max_tokens=1)
    driver.run_until_decoding("A")
    waits, in_a_row = set(), 0
    while "A" not in driver.finish_reasons:
        step = driver.step()
        if step.prefills:
            in_a_row += 1
        elif step.decodes:
            waits.add(in_a_row)
            in_a_row = 0
    finish(driver)
    return waits


@pytest.mark.parametrize("cls", [SeparatedScheduler, NeuronScheduler])
class TestBound:
    def test_many_short_prompts_in_one_turn(self, cls):
        assert steps_between_decodes(cls, limit=128, prompt=16) == {8}

    def test_padding_counts(self, cls):
        assert steps_between_decodes(cls, limit=128, prompt=17) == {4}

    def test_one_long_prompt(self, cls):
        assert steps_between_decodes(cls, limit=128, prompt=120) == {1}

    def test_what_does_not_fit_waits_for_the_next_turn(self, cls):
        assert steps_between_decodes(cls, limit=150, prompt=60) == {2}

    def test_chunks_of_one_prompt_are_paced_too(self, cls):
        assert steps_between_decodes(cls, limit=128, prompt=250) == {1}


def test_both_limits_hold_together():
    driver = drive(
        NeuronScheduler,
        max_num_seqs=50,
        num_blocks=500,
        neuron_config={
            "num_batched_tokens_buckets": LADDER,
            "max_decode_stall_tokens": 128,
            "max_consecutive_prefills": 3,
        },
    )
    driver.add("A", 16, max_tokens=12)
    for i in range(40):
        driver.add(f"p{i}", 16 + 100 * (i % 2), max_tokens=1)
    finish(driver)


@pytest.mark.parametrize("cls", [SeparatedScheduler, NeuronScheduler, NeuronAsyncScheduler])
def test_random_runs(cls):
    """The bound is one of the checks of a random run; here each run has one, and meets it."""
    events: Counter[str] = Counter()

    def pace(rng, settings) -> None:
        neuron_config = settings["neuron_config"]
        neuron_config.pop("max_consecutive_prefills", None)
        settings["max_loras"] = None  # waiting for an adapter would hide the reason counted below
        longest = min(settings["max_num_batched_tokens"], settings["max_model_len"])
        neuron_config["max_decode_stall_tokens"] = int(longest * rng.choice([1, 1, 1.5, 3]))

    def count(driver, step) -> None:
        events["step"] += 1
        events["bound"] += driver.scheduler.hold_reason == HoldReason.DECODES_FIRST

    for run in itertools.count():
        if events["step"] > 2_000:
            break
        run_once(cls, run, pace, [count])
    assert events["bound"] > 20
