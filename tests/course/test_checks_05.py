"""Lesson 5: its solutions are right, and what learners get wrong is named."""

import importlib.util

import pytest
from vllm.utils.math_utils import cdiv

from neuron_sched_lab.course.checks import ValueRule, compare_functions, compare_schedulers
from neuron_sched_lab.scheduler import HoldReason, KVAdmissionScheduler, PaddedScheduler
from neuron_sched_lab.scheduler.admission import get_max_kv_concurrent
from scripts.freeze_notebooks import NOTEBOOKS

spec = importlib.util.spec_from_file_location(
    "kv_admission_solutions", NOTEBOOKS / "exercises" / "05_kv_admission.py"
)
solutions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(solutions)


class GreaterThan(solutions.MyAdmissionScheduler):
    def can_schedule(self, request):
        if not PaddedScheduler.can_schedule(self, request):
            return False
        return not len(self.running) > self._max_kv_concurrent


class CountsNullBlock(solutions.MyAdmissionScheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        blocks_per_request = cdiv(self.max_model_len, self.block_size)
        self._max_kv_concurrent = max(1, self.kv_cache_config.num_blocks // blocks_per_request)


class FitsNow(solutions.MyAdmissionScheduler):
    def can_schedule(self, request):
        blocks_needed = cdiv(request.num_tokens, self.block_size)
        return PaddedScheduler.can_schedule(self, request) and (
            blocks_needed <= self.kv_cache_manager.block_pool.get_num_free_blocks()
        )


def compare(yours):
    return compare_schedulers(yours, KVAdmissionScheduler, kv_pressure=True, extra=["hold_reason"])


def test_the_solution_is_right():
    assert compare(solutions.MyAdmissionScheduler).solved


@pytest.mark.parametrize("yours", [GreaterThan, CountsNullBlock, FitsNow])
def test_a_wrong_bound_is_told_the_step_and_the_rule(yours):
    result = compare(yours)
    assert result.message.startswith("step ")
    assert "held it back because the KV cache was saturated" in result.message
    assert "rule broken: KV bound (" in result.details[0]
    assert "the cache holds " in result.details[0]


def test_a_reason_that_is_not_noted_is_told():
    class SaysNothing(solutions.MyAdmissionScheduler):
        def _hold(self, reason):
            return False

    assert "your hold_reason is None" in compare(SaysNothing).message


def test_the_order_of_the_questions_is_told():
    class AsksTheCacheFirst(solutions.MyAdmissionScheduler):
        def can_schedule(self, request):
            if len(self.running) >= self._max_kv_concurrent:
                return self._hold(HoldReason.KV_SATURATED)
            return PaddedScheduler.can_schedule(self, request)

    assert "rule broken: super first (" in compare(AsksTheCacheFirst).details[0]


def counts_null_block(num_blocks, blocks_per_request):
    return max(1, num_blocks // blocks_per_request)


def switched_off(num_blocks, blocks_per_request):
    return (num_blocks - 1) // blocks_per_request


@pytest.mark.parametrize(
    ("yours", "case", "words"),
    [
        (counts_null_block, (16, 8), "you returned 2, the packaged function returns 1"),
        (switched_off, (5, 8), "you returned 0, the packaged function returns 1"),
    ],
)
def test_a_wrong_number_is_told_the_case(yours, case, words):
    rule = ValueRule("null block", "it fits", lambda n, each, bound: bound in (0, 1))
    result = compare_functions(yours, get_max_kv_concurrent, [(33, 8), case], [rule])
    assert result.message.startswith("case 2: ")
    assert words in result.message
    assert bool(result.details) == (yours is counts_null_block)


def test_the_lesson_s_numbers():
    assert get_max_kv_concurrent(17, 8) == 2
    assert get_max_kv_concurrent(512, 8) * 8 == 512 - 8
    assert counts_null_block(512, 8) * 8 == 512
