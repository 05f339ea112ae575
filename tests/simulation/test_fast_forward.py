"""Fast-forward is exact: the same log, the same records, the same scheduler as step by step."""

import random

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import (
    HoldbackScheduler,
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from neuron_sched_lab.scheduler import compat
from neuron_sched_lab.scheduler.holdback import HoldReason
from neuron_sched_lab.scheduler.kv_policies import KV_ADMISSION_POLICIES
from neuron_sched_lab.simulation.cost_model import FunctionCostModel
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.trace.run_columns import requests_frame, steps_frame
from neuron_sched_lab.workloads import generators
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload

# Every step has a length of its own, so that no two orders of steps take the same time.
COST = FunctionCostModel(
    prefill=lambda bucket, context: 0.003 + 1e-5 * bucket + 1e-7 * context,
    decode=lambda rows, context: 0.004 + 1e-4 * rows + 1e-6 * context,
)
CLASSES = [
    Scheduler,
    HoldbackScheduler,
    SeparatedScheduler,
    PaddedScheduler,
    KVAdmissionScheduler,
    NeuronScheduler,
]
PROMPT, OUTPUT = (40, 0.9), (20, 0.8)
SMALL = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 256}


def random_workload(draw):
    rate, seed = draw.choice([2, 10, 50, 1000]), draw.randrange(1 << 30)
    lengths = {"prompt": PROMPT, "output": OUTPUT, "seed": seed}
    num_requests = draw.randint(5, 40)
    kind = draw.randrange(4)
    if kind == 0:
        return generators.bursty(rate, num_requests, burstiness=0.3, **lengths)
    if kind == 1:
        think = draw.choice([0, 0.1])
        return generators.closed_loop(
            draw.randint(1, 6), num_requests, think_seconds=think, **lengths
        )
    if kind == 2:
        return generators.chat_turns(rate, num_requests // 3, think_seconds=0.2, **lengths)
    return generators.poisson(rate, num_requests, prompt=(100, 0.9), output=1, seed=seed)


def random_settings(draw, cls):
    block_size, max_model_len = draw.choice([1, 4, 16]), draw.choice([128, 256])
    max_num_seqs = draw.choice([1, 2, 4, 8])
    least = max_model_len // block_size + 2
    settings = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": draw.choice([16, 32, 64, 256]),
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_kv_blocks": max(least, draw.choice([1, 2, max_num_seqs]) * least - 1),
        "enable_prefix_caching": draw.random() < 0.4,
        "policy": draw.choice(["fcfs", "fcfs", "priority"]),
    }
    config = {}
    if issubclass(cls, SeparatedScheduler) and draw.random() < 0.4:
        config["max_consecutive_prefills"] = draw.choice([1, 2, 3])
    if issubclass(cls, SeparatedScheduler) and draw.random() < 0.3:
        config["max_decode_stall_tokens"] = draw.choice([256, 300, 512])
    if issubclass(cls, KVAdmissionScheduler):
        config["kv_admission"] = draw.choice(KV_ADMISSION_POLICIES)
    return settings | ({"neuron_config": config} if config else {})


def fingerprint(scheduler):
    """All that a scheduler, its requests and its KV cache remember."""
    manager = scheduler.kv_cache_manager
    free, block = [], manager.block_pool.free_block_queue.fake_free_list_head.next_free_block
    while block.next_free_block is not None:
        free.append((block.block_id, block.block_hash))
        block = block.next_free_block
    requests = [
        {k: v for k, v in vars(r).items() if k not in NOT_COMPARED}
        | {"blocks": manager.get_block_ids(r.request_id)}
        for r in scheduler.requests.values()
    ]
    return {
        "free": free,
        "requests": [{k: str(v) for k, v in request.items()} for request in requests],
        "running": [r.request_id for r in scheduler.running],
        "waiting": [r.request_id for r in scheduler.waiting],
        "side": [r.request_id for r in getattr(scheduler, compat.SIDE_QUEUE)],
        "new_block_ids": [
            getattr(m, "new_block_ids", None) for m in manager.coordinator.single_type_managers
        ],
        "inflight": sorted(r.request_id for r in scheduler._inflight_prefills),
        **{n: plain(getattr(scheduler, n)) for n in ATTRIBUTES if hasattr(scheduler, n)},
    }


NOT_COMPARED = {"sampling_params", "_block_hasher", "output_token_ids", "all_token_ids"}
ATTRIBUTES = (
    "current_step", "finished_req_ids", "prev_step_scheduled_req_ids", "reset_preempted_req_ids",
    "prefill_capacity_bound", "hold_reason", "held_back", "admitted_from", "hidden_reqs",
    "held_decodes", "running_holdback", "holdback_queue", "_prefill", "_refusal",
    "_num_consecutive_prefills", "_num_stall_tokens", "scheduled_prefills", "total_padding_tokens",
    "state", "last_transition", "transitions",
)  # fmt: skip


def plain(value):
    """Requests by id, containers by what is in them, queues among them."""
    if hasattr(value, "request_id"):
        return value.request_id
    if isinstance(value, set):
        return sorted(value)
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [plain(v) for v in value]
    return str(value)


def assert_same(stepped, forwarded):
    assert steps_frame(stepped.log).equals(steps_frame(forwarded.log))
    assert requests_frame(stepped.log).equals(requests_frame(forwarded.log))
    assert stepped.metrics().as_dict() == forwarded.metrics().as_dict()
    assert stepped.trace == forwarded.trace
    before, after = fingerprint(stepped.scheduler), fingerprint(forwarded.scheduler)
    for name, value in before.items():
        assert value == after[name], name


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("seed", range(10))
def test_random_runs_to_the_end(cls, seed):
    draw = random.Random(f"{seed} {cls.__name__}")
    workload, settings = random_workload(draw), random_settings(draw, cls)
    stepped, forwarded = (
        simulate(workload, cls, COST, fast_forward=on, keep_records=True, **settings)
        for on in (False, True)
    )
    assert_same(stepped, forwarded)
    assert stepped.num_scheduled_steps == stepped.log.num_steps
    assert forwarded.why_not_fast_forwarded is None


@pytest.mark.parametrize("cls", [Scheduler, NeuronScheduler])
@pytest.mark.parametrize("seed", range(25))
def test_random_runs_to_a_step_in_the_middle(cls, seed):
    """At the end all queues are empty; here they are not."""
    draw = random.Random(f"{seed} {cls.__name__} middle")
    workload, settings = random_workload(draw), random_settings(draw, cls)
    workload = workload.fit(settings["max_model_len"])
    forwarded = simulate(workload, cls, COST, max_steps=draw.randint(5, 150), **settings)
    num_steps = forwarded.log.num_steps
    stepped = simulate(workload, cls, COST, fast_forward=False, max_steps=num_steps, **settings)
    assert_same(stepped, forwarded)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("max_steps", [3, 10, 20])
def test_an_arrival_while_all_seats_are_taken(cls, max_steps):
    requests = (WorkloadRequest("a", 0.0, 20, 50), WorkloadRequest("b", 0.03, 20, 50))
    workload, settings = Workload("w", requests), {**SMALL, "max_num_seqs": 1}
    forwarded = simulate(workload, cls, COST, max_steps=max_steps, **settings)
    num_steps = forwarded.log.num_steps
    stepped = simulate(workload, cls, COST, fast_forward=False, max_steps=num_steps, **settings)
    assert_same(stepped, forwarded)
    assert forwarded.num_scheduled_steps == 1


def test_most_decode_steps_are_not_scheduled():
    workload = generators.poisson(5, 60, prompt=100, output=100)
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256}
    for cls in CLASSES:
        result = simulate(workload, cls, COST, **settings)
        assert result.num_scheduled_steps < result.log.num_steps / 5, cls


def test_a_token_budget_below_the_number_of_decodes_gives_the_same():
    workload = generators.poisson(50, 12, prompt=10, output=20)
    stepped, forwarded = (
        simulate(
            workload, NeuronScheduler, COST, fast_forward=on, max_num_scheduled_tokens=3, **SMALL
        )
        for on in (False, True)
    )
    assert max(len(r.running) for r in stepped.trace) == 4
    assert_same(stepped, forwarded)


def test_runs_with_preemptions_are_the_same_too():
    settings = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "block_size": 4,
        "num_kv_blocks": 80,
    }
    workload = generators.poisson(50, 30, prompt=40, output=60)
    stepped, forwarded = (
        simulate(workload, Scheduler, COST, fast_forward=on, **settings) for on in (False, True)
    )
    assert stepped.metrics().num_preemptions > 10
    assert_same(stepped, forwarded)
    assert forwarded.num_scheduled_steps < stepped.num_scheduled_steps / 2


def test_runs_in_which_the_banker_holds_decodes_back_are_the_same_too():
    settings = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "block_size": 4,
        "num_kv_blocks": 80,
        "neuron_config": {"kv_admission": "banker"},
    }
    workload = generators.poisson(50, 30, prompt=(40, 0.5), output=(60, 0.5))
    stepped, forwarded = (
        simulate(workload, NeuronScheduler, COST, fast_forward=on, **settings)
        for on in (False, True)
    )
    held = [r for r in stepped.trace if r.held_decodes]
    assert len(held) > 10
    assert_same(stepped, forwarded)
    # Steps in which somebody is held back are scheduled one by one.
    assert forwarded.num_scheduled_steps < stepped.num_scheduled_steps - 100


class Picky(NeuronScheduler):
    """Decides by the time of day, so to speak: whom it admits depends on the step."""

    def can_schedule(self, request):
        in_turn = self.current_step % 7 == 0 or not self.running
        return in_turn and super().can_schedule(request)


class Promising(NeuronScheduler):
    """Decides by what only arrivals and endings change, and says so."""

    steady_while_decoding = True

    def can_schedule(self, request):
        if len(self.running) >= 2:
            return self._hold(HoldReason.AT_CAPACITY)
        return super().can_schedule(request)


class Meddling(NeuronScheduler):
    """Changes what a step is."""

    def _schedule_visible(self):
        return super()._schedule_visible()


WAITING = generators.poisson(20, 30, prompt=(40, 0.5), output=(20, 0.5))


@pytest.mark.parametrize("cls", [Picky, Promising, Meddling])
def test_a_policy_of_ones_own_gives_the_same(cls):
    stepped, forwarded = (
        simulate(WAITING, cls, COST, fast_forward=on, **SMALL) for on in (False, True)
    )
    assert_same(stepped, forwarded)


def test_how_far_a_policy_of_ones_own_is_advanced():
    packaged, picky, promising, meddling = (
        simulate(WAITING, cls, COST, **SMALL)
        for cls in (NeuronScheduler, Picky, Promising, Meddling)
    )
    assert packaged.num_scheduled_steps < packaged.log.num_steps / 3
    # While nobody waits, can_schedule() is not asked.
    assert picky.num_scheduled_steps < picky.log.num_steps
    assert promising.num_scheduled_steps < promising.log.num_steps / 3
    assert meddling.num_scheduled_steps == meddling.log.num_steps
    assert meddling.why_not_fast_forwarded == "Meddling overrides _schedule_visible"


def test_the_asynchronous_scheduler_is_not_advanced():
    result = simulate(WAITING, NeuronAsyncScheduler, COST, **SMALL)
    assert result.why_not_fast_forwarded == "asynchronous scheduling"
