"""Lesson 6: its solutions are right, and what learners get wrong is named."""

import importlib.util

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.course.checks import compare_schedulers
from neuron_sched_lab.scheduler import NeuronAsyncScheduler, NeuronScheduler, SchedulerState
from scripts.freeze_notebooks import NOTEBOOKS

spec = importlib.util.spec_from_file_location(
    "state_machine_solutions", NOTEBOOKS / "exercises" / "06_state_machine_and_async.py"
)
solutions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(solutions)

IDLE, PREFILL, DECODE = SchedulerState


class PostIncrement(solutions.MyStateScheduler):
    def is_prefill_step(self, scheduler_output):
        requests = [self.requests[r] for r in scheduler_output.num_scheduled_tokens]
        return any(r.num_computed_tokens < r.num_prompt_tokens for r in requests)


class NewRequestsOnly(solutions.MyStateScheduler):
    def is_prefill_step(self, scheduler_output):
        return bool(scheduler_output.scheduled_new_reqs)


class NeverIdle(solutions.MyStateScheduler):
    def _update_state(self, scheduler_output):
        super()._update_state(scheduler_output)
        if self.state is IDLE:
            self.state = DECODE


class ForgetsTheSecondQueue(solutions.MyStateScheduler):
    def get_request_counts(self):
        return len(self.running), len(self.waiting)


class IdleWheneverEmpty(solutions.MyStateScheduler):
    def _update_state(self, scheduler_output):
        super()._update_state(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            self.state = IDLE


class ForgetsToReturn(solutions.MyIdleScheduler):
    def update_from_output(self, scheduler_output, model_runner_output):
        super().update_from_output(scheduler_output, model_runner_output)


@pytest.mark.parametrize("yours", [solutions.MyStateScheduler, solutions.MyIdleScheduler])
def test_the_solution_is_right(yours):
    assert compare_schedulers(yours, NeuronScheduler, not_ready=True).solved


@pytest.mark.parametrize("yours", [IdleWheneverEmpty, ForgetsTheSecondQueue])
def test_idle_with_requests_left_is_told(yours):
    result = compare_schedulers(yours, NeuronScheduler, not_ready=True)
    assert "rule broken: empty step (" in result.details[0]
    assert "to IDLE, with " in result.details[0]


def test_outputs_that_are_not_handed_on_are_told():
    result = compare_schedulers(ForgetsToReturn, NeuronScheduler, not_ready=True)
    assert "update_from_output() returned None" in result.message
    assert "rule broken: handed on (" in result.details[0]


@pytest.mark.parametrize("yours", [PostIncrement, NewRequestsOnly])
def test_a_wrong_state_is_told_the_step_and_the_rule(yours):
    result = compare_schedulers(yours, NeuronScheduler)
    assert result.message.startswith("step ")
    assert "your state is ACTIVE_DECODE, the packaged class's is ACTIVE_PREFILL" in result.message
    assert "rule broken: true state (" in result.details[0]


def test_a_state_that_is_never_idle_is_told():
    result = compare_schedulers(NeverIdle, NeuronScheduler)
    assert "the packaged class's is IDLE; the step prefilled nothing" in result.message
    assert "rule broken: idle (" in result.details[0]


def test_either_order_of_the_bases_is_right_with_this_vllm():
    """The lesson says so; a vLLM in which it is not so needs another text."""
    wrong = type("WrongOrder", (AsyncScheduler, NeuronScheduler), {})
    assert compare_schedulers(wrong, NeuronAsyncScheduler).solved


def test_an_ancestor_called_by_name_leaves_the_async_scheduler_out():
    class CallsByName(NeuronAsyncScheduler):
        def _update_after_schedule(self, scheduler_output):
            Scheduler._update_after_schedule(self, scheduler_output)

    assert "AssertionError" in compare_schedulers(CallsByName, NeuronAsyncScheduler).message


def test_device_feeds_are_counted_by_batch():
    steps = [("prefill", ["a"]), ("decode", ["a"]), ("prefill", ["b"]), ("decode", ["a", "b"])]
    assert solutions.my_count_device_feeds(steps) == 1
    assert solutions.my_count_device_feeds([*steps, ("decode", ["a", "b"])]) == 2
    assert solutions.my_count_device_feeds([*steps, ("decode", ["b", "a"])]) == 1
