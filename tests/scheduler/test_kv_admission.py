"""The KV admission policies in a live scheduler: whom they let in, whom the banker holds back."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
from vllm.v1.outputs import ModelRunnerOutput

from neuron_sched_lab.scheduler import (
    HoldReason,
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    admission,
)
from neuron_sched_lab.scheduler.kv_claims import KVClaims
from neuron_sched_lab.scheduler.kv_policies import is_safe_state
from tests.scheduler.factory import make_request
from tests.scheduler.harness import Driver
from tests.scheduler.holes import drive, finish, free_blocks
from tests.scheduler.invariants import check_no_preemption

CLASSES = [KVAdmissionScheduler, NeuronScheduler, NeuronAsyncScheduler]


def drive_policy(kv_admission: str, cls=NeuronScheduler, **settings) -> Driver:
    neuron_config = {"kv_admission": kv_admission, **settings.pop("neuron_config", {})}
    return drive(cls, neuron_config=neuron_config, **settings)


def step_until_saturated(driver: Driver) -> list[str]:
    """Step until the head of the queue finds no room; returns who runs."""
    for _ in range(50):
        driver.step()
        if driver.scheduler.hold_reason == HoldReason.KV_SATURATED:
            return [request.request_id for request in driver.scheduler.running]
    raise AssertionError("the KV cache was never saturated")


class TestWhoIsLetIn:
    """Twelve blocks of 16; max_model_len would take 6, a request's claim is 3, its prompt 1."""

    @staticmethod
    def concurrency(policy: str, cls) -> int:
        driver = drive_policy(policy, cls, max_model_len=96, num_blocks=13, max_num_seqs=16)
        for i in range(16):
            driver.add(f"r{i}", 16, max_tokens=32)
        running = step_until_saturated(driver)
        finish(driver)
        return len(running)

    @pytest.mark.parametrize("cls", CLASSES)
    def test_worst_case(self, cls):
        assert self.concurrency("worst_case", cls) == 12 // 6

    @pytest.mark.parametrize("cls", CLASSES)
    def test_reservation(self, cls):
        assert self.concurrency("reservation", cls) == 12 // 3

    @pytest.mark.parametrize("cls", CLASSES)
    def test_banker(self, cls):
        # The newcomer has one block, the others their second, and one is left to lend:
        # 1 + 2 (n - 1) + 1 <= 12.
        assert self.concurrency("banker", cls) == 6


class TestBankersDecodes:
    @staticmethod
    def lent_out(cls=NeuronScheduler, **settings) -> Driver:
        driver = drive_policy(
            "banker", cls, max_model_len=96, num_blocks=13, max_num_seqs=16, **settings
        )
        for name in "ABCDE":
            driver.add(name, 16, max_tokens=40)
        return driver

    @pytest.mark.parametrize("cls", CLASSES)
    def test_some_wait_while_blocks_are_short_and_nobody_is_preempted(self, cls):
        driver = self.lent_out(cls)
        held = []
        while not driver.done:
            step = driver.step()
            names = [request.request_id for request in driver.scheduler.held_decodes]
            assert not set(names) & step.output.num_scheduled_tokens.keys()
            assert set(names) <= {r.request_id for r in driver.scheduler.hidden_reqs}
            held.append(names)
        assert any(held)
        assert all("A" not in names for names in held), "the oldest was held back"
        assert driver.wasted_steps == 0
        finish(driver)

    def test_priority_goes_before_age(self):
        def ever_held(policy: str) -> set[str]:
            driver = drive_policy(
                "banker", max_model_len=96, num_blocks=13, max_num_seqs=16, policy=policy
            )
            for i, name in enumerate("ABCDE"):
                driver.add(name, 16, max_tokens=40, priority=5 - i)
                driver.step()  # the least important is the oldest
            driver.run_until_decoding(*"ABCDE")
            held = set()
            while not driver.finish_reasons:
                driver.step()
                held |= {request.request_id for request in driver.scheduler.held_decodes}
            return held

        assert "E" in ever_held("fcfs") and "A" not in ever_held("fcfs")
        assert "A" in ever_held("priority") and "E" not in ever_held("priority")

    def test_held_decodes_are_not_called_a_turn_of_the_decodes(self):
        driver = self.lent_out()
        causes = set()
        while not driver.done:
            driver.step()
            causes.add(driver.scheduler.last_transition.cause)
        assert "decodes go first" not in causes

    def test_other_policies_hold_no_decode(self):
        for policy in ("worst_case", "reservation"):
            driver = drive_policy(policy, max_model_len=96, num_blocks=13)
            for name in "ABCDE":
                driver.add(name, 16, max_tokens=40)
            while not driver.done:
                driver.step()
                assert driver.scheduler.held_decodes == []

    @pytest.mark.parametrize("cls", [NeuronScheduler, NeuronAsyncScheduler])
    def test_all_held_back_lets_the_prefill_go_on_although_it_is_their_turn(self, cls):
        """A needs P's blocks to finish, and P is in the middle of its prompt."""
        driver = drive_policy(
            "banker",
            cls,
            max_model_len=160,
            num_blocks=11,
            max_num_batched_tokens=16,
            neuron_config={"max_consecutive_prefills": 1},
        )
        driver.add("A", 16, max_tokens=112)  # claims 8 of 10
        driver.run_until_decoding("A")
        driver.add("P", 96, max_tokens=16)  # 6 chunks, claims 7: 6 + 2 allocated, 2 left
        finish(driver)

    def test_the_prompt_in_progress_keeps_what_it_was_promised(self):
        driver = drive_policy(
            "banker",
            max_model_len=160,
            num_blocks=11,
            max_num_batched_tokens=16,
            neuron_config={"max_consecutive_prefills": 1},
        )
        driver.add("A", 15, max_tokens=64)
        driver.run_until_decoding("A")
        driver.add("P", 96, max_tokens=2)
        driver.step()
        state = driver.scheduler.get_kv_state()
        assert [(h.request_id, h.allocated) for h in state.holders] == [("A", 1), ("P", 6)]
        assert (free_blocks(driver), state.num_free) == (8, 3)
        finish(driver)


class TestFairness:
    """An older request that waits for a block is not overtaken by newcomers for ever."""

    @staticmethod
    def steps_of_the_old_one() -> int | None:
        driver = drive_policy(
            "banker", max_model_len=320, num_blocks=21, max_num_batched_tokens=128, max_num_seqs=8
        )
        driver.add("old", 16, max_tokens=16 * 17)
        for i in range(1_000):
            while len(driver.unfinished) < 12:
                driver.add(f"s{len(driver.requests)}", 60, max_tokens=10)
            driver.step()
            if "old" in driver.finish_reasons:
                return i
        return None

    def test_next_blocks_come_before_newcomers(self):
        assert self.steps_of_the_old_one() < 2 * 16 * 17

    def test_without_that_rule_it_starves(self):
        with patch.object(admission, "banker_admits", is_safe_state):
            assert self.steps_of_the_old_one() is None


class TestSharedPrefixes:
    @staticmethod
    def concurrency(policy: str) -> int:
        driver = drive_policy(
            policy,
            max_model_len=160,
            num_blocks=21,
            max_num_seqs=16,
            max_num_batched_tokens=160,
            prefix_caching=True,
        )
        prefix = list(range(112))  # 7 blocks
        for i in range(16):
            driver.add(f"r{i}", [*prefix, i], max_tokens=30)
        step_until_saturated(driver)
        most = 0
        while not driver.done:
            driver.step()
            most = max(most, len(driver.scheduler.running))
        finish(driver)
        return most

    def test_reservation_counts_them_for_each_holder(self):
        assert self.concurrency("reservation") == 20 // 9

    def test_the_banker_lends_what_sharing_leaves_free(self):
        assert self.concurrency("banker") > 20 // 9


@pytest.mark.parametrize("policy", ["reservation", "banker"])
@pytest.mark.parametrize("cls", CLASSES)
class TestBothPolicies:
    def test_after_a_reset_of_running_requests(self, cls, policy):
        driver = drive_policy(policy, cls, max_model_len=96, num_blocks=13, max_num_seqs=8)
        for name in "ABCDE":
            driver.add(name, 20, max_tokens=50)
        driver.run_until_decoding("A", "B")
        while len(driver.outputs["A"]) < 20:
            driver.step()
        driver.watchers.remove(check_no_preemption)
        driver.reset(running=True)
        driver.step()
        driver.watchers.append(check_no_preemption)
        finish(driver)

    @pytest.mark.parametrize("reserve_full_isl", [True, False])
    def test_with_a_watermark(self, cls, policy, reserve_full_isl):
        driver = drive_policy(
            policy,
            cls,
            max_model_len=96,
            num_blocks=21,
            max_num_seqs=8,
            max_num_batched_tokens=16,
            watermark=0.2,
            reserve_full_isl=reserve_full_isl,
        )
        for i in range(12):
            driver.add(f"r{i}", 40, max_tokens=30)
        finish(driver)

    @pytest.mark.parametrize("prefix_caching", [True, False])
    def test_with_sliding_window_layers(self, cls, policy, prefix_caching):
        """As in gpt-oss: every other layer keeps a window, in a block table of its own."""
        driver = drive_policy(
            policy,
            cls,
            max_model_len=320,
            num_blocks=41,
            max_num_batched_tokens=64,
            max_num_seqs=8,
            sliding_window=32,
            prefix_caching=prefix_caching,
        )
        for i in range(12):
            driver.add(f"r{i}", 60 + i, max_tokens=40 + 11 * i)
        finish(driver)

    def test_a_cache_of_a_single_request(self, cls, policy):
        driver = drive_policy(policy, cls, max_model_len=96, num_blocks=7)
        for name in "AB":
            driver.add(name, 40, max_tokens=56)
        finish(driver)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("shared", [31, 32, 33])
def test_a_common_prefix_is_no_trap_for_the_banker(cls, shared):
    """Blocks that A, B and C share come back with the last of them, and not before."""
    driver = drive_policy(
        "banker",
        cls,
        block_size=4,
        max_model_len=100,
        num_blocks=39,
        max_num_seqs=6,
        max_num_batched_tokens=50,
        prefix_caching=True,
    )
    for name in "ABC":
        driver.add(name, [*range(shared), ord(name)], max_tokens=100)
    for name in "DEF":
        driver.add(name, 9, max_tokens=100)
    finish(driver)


def test_blocks_shared_by_two_are_counted_for_both():
    driver = drive_policy("banker", prefix_caching=True)
    driver.add("A", [1] * 40, max_tokens=20)
    driver.add("B", [1] * 40, max_tokens=20)
    driver.run_until_decoding("A", "B")
    holders = driver.scheduler.get_kv_state().holders
    assert [(h.request_id, h.allocated, h.shared) for h in holders] == [("A", 3, 2), ("B", 3, 2)]


def run_steps(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.step()


class NoOracle:
    """Answers token 7 to whoever is not in the middle of its prompt."""

    def __init__(self, driver: Driver) -> None:
        self.requests = driver.scheduler.requests

    def execute(self, output) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        tokens = [[] if self.requests[req_id].is_prefill_chunk else [7] for req_id in ids]
        return ModelRunnerOutput(ids, {req_id: i for i, req_id in enumerate(ids)}, tokens)


class TestStreamingSessions:
    """A session keeps its blocks between two inputs, when it is in no running queue."""

    @staticmethod
    def next_input_waits_in_the_queue(policy: str, cls) -> Driver:
        # 16 blocks: two requests of max_model_len. B and C may take 8 each, the session holds 2.
        driver = drive_policy(policy, cls, max_model_len=128, num_blocks=17)
        driver.watchers.clear()  # a session "finishes" and is still there
        driver.watchers.append(check_no_preemption)
        driver.oracle = NoOracle(driver)  # and starts twice
        driver.add("session", 20, max_tokens=10, resumable=True)
        driver.add("B", 20, max_tokens=108)
        driver.add("C", 20, max_tokens=108)
        driver.run_until_decoding("session", "B")
        scheduler = driver.scheduler
        # The next input is there before the first is done, so the session queues up, behind C.
        scheduler.add_request(make_request("session", 4, max_tokens=4, resumable=True))
        while scheduler.requests["session"].status.name == "RUNNING":
            driver.step()
        return driver

    @pytest.mark.parametrize("policy", ["worst_case", "reservation", "banker"])
    @pytest.mark.parametrize("cls", CLASSES)
    def test_nobody_takes_its_blocks(self, cls, policy):
        driver = self.next_input_waits_in_the_queue(policy, cls)
        run_steps(driver, 400)
        assert driver.finish_reasons.keys() >= {"B", "C"}

    def test_counting_seats_alone_ends_in_preemption(self):
        with patch.object(
            KVAdmissionScheduler, "_get_sessions_between_inputs", lambda *_, **__: []
        ):
            driver = self.next_input_waits_in_the_queue("worst_case", NeuronScheduler)
            with pytest.raises(AssertionError, match="preempted"):
                run_steps(driver, 400)

    def test_its_whole_claim_is_out_of_reach_of_the_others(self):
        driver = self.next_input_waits_in_the_queue("banker", NeuronScheduler)
        scheduler = driver.scheduler
        session = scheduler.requests["session"]
        state = scheduler.get_kv_state([session])
        assert state.num_blocks == 16 - 8
        assert [holder.request_id for holder in state.holders] == ["B"]

    def test_an_ended_session_is_forgotten(self):
        driver = self.next_input_waits_in_the_queue("banker", NeuronScheduler)
        driver.abort("session")
        assert driver.scheduler._get_sessions_between_inputs() == []


class TestClaims:
    @staticmethod
    def state_with(driver: Driver, request_id: str):
        return driver.scheduler.get_kv_state([driver.requests[request_id]]).holders

    def test_prompt_and_max_tokens_capped_by_max_model_len(self):
        driver = drive_policy("reservation", max_model_len=96, num_blocks=40)
        driver.add("short", 20, max_tokens=13)
        driver.add("long", 20, max_tokens=1_000)
        assert self.state_with(driver, "short")[0][1:3] == (2, 3)
        assert self.state_with(driver, "long")[0][1:3] == (2, 6)

    def test_a_decode_wants_a_block_when_its_last_one_is_full(self):
        driver = drive_policy("banker", max_model_len=96, num_blocks=40)
        driver.add("A", 14, max_tokens=30)
        wants = []
        for _ in range(5):
            driver.step()
            wants.append(driver.scheduler.get_kv_state().holders[0].want)
        # Slots 0 to 13 by the prompt, then 14, 15, and the first of the next block.
        assert wants == [0, 0, 1, 0, 0]

    def test_sharing_is_not_relied_on_where_a_window_gives_blocks_back(self):
        """A shared block that one window leaves is still in the other's: nothing is freed."""
        driver = drive_policy(
            "banker",
            max_model_len=160,
            num_blocks=81,
            max_num_batched_tokens=160,
            sliding_window=32,
            prefix_caching=True,
        )
        prefix = list(range(40))
        driver.add("A", [*prefix, 1], max_tokens=60)
        driver.run_until_decoding("A")
        driver.add("B", [*prefix, 2], max_tokens=60)
        driver.run_until_decoding("B")
        state = driver.scheduler.get_kv_state()
        assert state.num_free < free_blocks(driver)
        assert state.num_free == state.num_blocks - sum(h.allocated for h in state.holders)
        finish(driver)

    def test_worst_case_keeps_no_books(self):
        driver = drive_policy("worst_case")
        with pytest.raises(RuntimeError, match="kv_admission: 'worst_case' counts requests"):
            driver.scheduler.get_kv_state()

    @staticmethod
    def fake_scheduler(**changes):
        scheduler = drive_policy("worst_case").scheduler
        for name, value in changes.items():
            setattr(scheduler, name, value)
        return scheduler

    def test_a_kv_connector_is_refused(self):
        with pytest.raises(ValueError, match="kv_admission: with a KV connector"):
            KVClaims(self.fake_scheduler(connector=object()))

    def test_a_cache_that_cannot_be_foretold_is_refused(self):
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace())
        scheduler = self.fake_scheduler(kv_cache_config=SimpleNamespace(kv_cache_groups=[group]))
        with pytest.raises(ValueError, match="kv_admission: how many blocks a SimpleNamespace"):
            KVClaims(scheduler)
