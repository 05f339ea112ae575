"""Seeded random runs of the KV admission policies, with much claimed and little there.

All that test_fuzz.py checks (no preemption, no stall, admission in order, right tokens), and what
the policies promise of the state: it stays safe, and of two policies the wider admits whatever the
narrower admits.
"""

import itertools
from collections import Counter, defaultdict
from unittest.mock import patch

import pytest

from neuron_sched_lab.scheduler import KVAdmissionScheduler, NeuronAsyncScheduler, NeuronScheduler
from neuron_sched_lab.scheduler.kv_policies import (
    banker_admits,
    claims_fit,
    is_safe_state,
    worst_case_fits,
)
from tests.scheduler.test_fuzz import run_once

STEPS_PER_TEST = 5_000
CASES = [
    *(
        (cls, "banker", seed)
        for cls in (NeuronScheduler, NeuronAsyncScheduler)
        for seed in range(5)
    ),
    (KVAdmissionScheduler, "reservation", 0),
    (NeuronAsyncScheduler, "reservation", 1),
]


def all_verdicts(scheduler, request) -> dict[str, bool]:
    """What each policy says of `request` in the live state."""
    others = scheduler._get_sessions_between_inputs(but=request)
    num_holders = len(scheduler.running) + len(others) + 1
    state = scheduler.get_kv_state([*others, request])
    alone = num_holders == 1
    return {
        "worst_case": worst_case_fits(num_holders, scheduler._max_kv_concurrent),
        "reservation": alone or claims_fit([h.claim for h in state.holders], state.num_blocks),
        "banker": alone or banker_admits(state),
    }


class Policy:
    """Sets a policy, and watches a run under it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: Counter[str] = Counter()

    def change(self, rng, settings) -> None:
        settings["neuron_config"]["kv_admission"] = self.name
        settings["max_num_seqs"] = rng.choice([3, 4, 6, 8])
        settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], 8)
        if rng.random() < 0.3:
            settings["sliding_window"] = rng.choice([8, 20, 40])
            # Room for a second block table of one request.
            settings["num_blocks"] += settings["max_model_len"] // settings["block_size"] + 2

    def check_state(self, driver, step) -> None:
        scheduler = driver.scheduler
        self.events["step"] += 1
        self.events["step with decodes held back"] += bool(scheduler.held_decodes)
        held = {request.request_id for request in scheduler.held_decodes}
        assert not held & step.output.num_scheduled_tokens.keys()
        state = scheduler.get_kv_state()
        if len(state.holders) > 1:
            assert is_safe_state(state), f"step left {state}"
            claims = [holder.claim for holder in state.holders]
            assert self.name == "banker" or claims_fit(claims, state.num_blocks), state
        if not scheduler.kv_cache_manager.watermark_blocks:
            # vLLM's watermark may still refuse what the policy admits; nothing else does.
            assert not step.wasted or step.preempted

    def compare(self, admits):
        """Wrap `_kv_admits` so that every question is put to all three."""

        def ask(scheduler, request):
            verdicts = all_verdicts(scheduler, request)
            narrow_to_wide = [verdicts[name] for name in ("worst_case", "reservation", "banker")]
            assert narrow_to_wide == sorted(narrow_to_wide), verdicts
            self.events[f"{sum(narrow_to_wide)} of 3 admit"] += 1
            assert admits(scheduler, request) == verdicts[self.name]
            return verdicts[self.name]

        return ask


@pytest.fixture(scope="module")
def totals(request):
    """Collects what happened in all runs and reports it once."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    yield counts
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        for name, events in counts.items():
            text = ", ".join(f"{event}: {count:,}" for event, count in sorted(events.items()))
            print(f"\n{name}: {text}")


@pytest.mark.parametrize(
    ("cls", "name", "seed"), CASES, ids=[f"{cls.__name__}-{name}-{s}" for cls, name, s in CASES]
)
def test_random_runs(cls, name, seed, totals):
    policy = Policy(name)
    ask = policy.compare(KVAdmissionScheduler._kv_admits)
    with patch.object(KVAdmissionScheduler, "_kv_admits", ask):
        for run in itertools.count():
            if policy.events["step"] >= STEPS_PER_TEST:
                break
            run_once(cls, 1_000_000 * seed + run, policy.change, [policy.check_state])
    assert policy.events["1 of 3 admit"] and policy.events["2 of 3 admit"]
    assert bool(policy.events["step with decodes held back"]) == (name == "banker")
    totals[name].update(policy.events)


def test_the_banker_ran_for_50_000_steps():
    assert STEPS_PER_TEST * sum(name == "banker" for _, name, _ in CASES) >= 50_000
