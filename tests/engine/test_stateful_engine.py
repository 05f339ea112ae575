"""Hypothesis plays with a whole engine: scheduler, vLLM's engine core, our worker, the tiny model.

At low volume; tests/scheduler/test_stateful.py plays with the scheduler alone, thousands of steps.
What only an engine shows is checked here: that every answer is the one that vLLM's own scheduler
and worker give, token for token, whatever else went on.
"""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import Lab, NeuronAsyncScheduler, NeuronScheduler

SETTINGS = settings(
    derandomize=True,
    max_examples=8,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONGEST_ANSWER = 24
MAX_MODEL_LEN = 128
ENGINE = {"max_num_batched_tokens": 64, "max_model_len": MAX_MODEL_LEN, "block_size": 32}
TIGHT = {
    "max_num_seqs": 4,
    "num_kv_blocks": 2 * MAX_MODEL_LEN // 32 + 1,
    "neuron_config": {"num_batched_tokens_buckets": [16, 32, 64]},
}
"""KV for two requests of four; a ladder whose edges the prompts below meet."""


def make_prompts() -> list[list[int]]:
    """One prompt at each edge of a bucket, of a block and of the context, half with one prefix."""
    rng = random.Random(0)
    lengths = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, MAX_MODEL_LEN - 1]
    prefix = [rng.randint(3, 97) for _ in range(MAX_MODEL_LEN)]
    return [
        [*prefix[: n // 2 * (i % 2)], *(rng.randint(3, 97) for _ in range(n - n // 2 * (i % 2)))]
        for i, n in enumerate(lengths)
    ]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def answers() -> list[list[int]]:
    """What vLLM's own scheduler and worker answer to each prompt, one at a time."""
    with Lab(Scheduler, worker="vllm", max_num_seqs=1, **ENGINE) as lab:
        for i, prompt in enumerate(PROMPTS):
            lab.add(prompt, max_tokens=LONGEST_ANSWER, request_id=str(i), ignore_eos=True)
        tokens = lab.run().tokens()
    return [list(tokens[str(i)]) for i in range(len(PROMPTS))]


class EngineMachine(RuleBasedStateMachine):
    """Arrivals, structured outputs, aborts and steps in any order."""

    lab: Lab
    answers: list[list[int]]
    events: Counter[str]

    def pick(self, options):
        return self.data.draw(st.sampled_from(options))

    @initialize(data=st.data())
    def begin(self, data):
        self.data = data
        self.lab.reset()
        self.prompt_of: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.aborted: set[str] = set()

    @rule()
    def add(self):
        i = self.pick(range(len(PROMPTS)))
        count = self.pick([1, 2, 7, LONGEST_ANSWER])
        name = self.lab.add(PROMPTS[i], max_tokens=count, ignore_eos=True)
        self.prompt_of[name] = i
        self.asked[name] = min(count, MAX_MODEL_LEN - len(PROMPTS[i]))

    @rule()
    def add_with_stop_token(self):
        """The answer's own third token ends it, where it has one."""
        i = self.pick(range(len(PROMPTS)))
        stop = self.answers[i][min(2, len(self.answers[i]) - 1)]
        name = self.lab.add(
            PROMPTS[i], max_tokens=LONGEST_ANSWER, ignore_eos=True, stop_token_ids=[stop]
        )
        self.prompt_of[name] = i
        self.asked[name] = self.answers[i].index(stop) + 1

    @rule()
    def add_structured(self):
        """Digits only; the grammar compiles in another thread."""
        name = self.lab.add(
            PROMPTS[self.pick(range(4))],
            max_tokens=5,
            structured_outputs=StructuredOutputsParams(regex="[0-9]{3}"),
        )
        self.asked[name] = -1

    @precondition(lambda self: self.asked.keys() - self.aborted)
    @rule()
    def abort(self):
        name = self.pick(sorted(self.asked.keys() - self.aborted))
        self.lab.abort(name)
        self.events["abort"] += 1
        self.aborted.add(name)

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            record = self.lab.step()
            assert record is None or record.phase in {"prefill", "decode", "empty"}
            self.events[record.phase if record else "nothing to do"] += 1

    def teardown(self):
        if not hasattr(self, "asked"):
            return
        trace = self.lab.run()
        tokens = trace.tokens()
        self.events["answer"] += len(self.prompt_of.keys() - self.aborted)
        for name, i in self.prompt_of.items():
            got = list(tokens.get(name, ()))
            assert got == self.answers[i][: len(got)], f"{name}, prompt {i}"
            if name not in self.aborted:
                assert len(got) == self.asked[name], f"{name}: {len(got)} tokens"
        for name in self.asked.keys() - self.prompt_of.keys() - self.aborted:
            assert self.lab.text[name][:3].isdigit(), self.lab.text[name]
            self.events["structured answer"] += 1
        scheduler = self.lab.scheduler
        assert not scheduler.requests
        pool = scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == scheduler.kv_cache_config.num_blocks - 1
        assert scheduler.state.value == "IDLE"


@pytest.mark.parametrize("cls", [NeuronScheduler, NeuronAsyncScheduler])
def test_no_sequence_of_events_changes_an_answer(cls, answers):
    with Lab(cls, worker="neuron", device="cpu", **ENGINE, **TIGHT) as lab:
        fixed = {"lab": lab, "answers": answers, "events": Counter()}
        machine = type("Machine", (EngineMachine,), fixed)
        run_state_machine_as_test(machine, settings=SETTINGS)
    seen = fixed["events"]
    assert {"prefill", "decode", "abort", "answer", "structured answer"} <= seen.keys(), seen
