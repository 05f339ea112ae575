"""Lesson 04: what learners get wrong in its exercises is caught, and the rule is named."""

import re
import runpy

import pytest

from neuron_sched_lab.course.checks import batch_purity, compare_schedulers
from neuron_sched_lab.course.checks.batch_purity import try_mixed_batch, try_two_prefills
from neuron_sched_lab.course.exercises import read_master
from neuron_sched_lab.scheduler import NeuronScheduler, PaddedScheduler, SeparatedScheduler
from scripts.freeze_notebooks import NOTEBOOKS

MASTER = read_master(NOTEBOOKS / "exercises" / "04_padding.py")
EXTRA = {"extra": ["scheduled_prefills", "total_padding_tokens"], "kv_pressure": True}
CLASSES = {
    "padding": ("MyPaddedScheduler", PaddedScheduler, {}),
    "purity": ("MyVerifyingScheduler", SeparatedScheduler, {}),
    "find_prefills": ("MyFindingScheduler", PaddedScheduler, EXTRA),
}
IMPORTS = """
from neuron_sched_lab.scheduler import SeparatedScheduler
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count
from neuron_sched_lab.scheduler.padding import get_scheduled_prefills
"""


@pytest.fixture
def make_class(tmp_path):
    """Make the class of an exercise's solution, with `old` replaced by `new`."""

    def make_class(exercise, old="", new=""):
        source = MASTER[exercise].solution
        assert old in source
        path = tmp_path / "learner.py"
        path.write_text(IMPORTS + source.replace(old, new), encoding="utf-8")
        return runpy.run_path(str(path), run_name="learner")[CLASSES[exercise][0]]

    return make_class


@pytest.mark.parametrize("exercise", CLASSES)
def test_the_solution_is_right(make_class, exercise):
    _, packaged, options = CLASSES[exercise]
    assert compare_schedulers(make_class(exercise), packaged, **options).solved


WRONG = {
    "the padded count in the wrong field": (
        "padding",
        "output.num_scheduled_tokens_padded = padded",
        "output.num_scheduled_tokens = padded",
        "true accounts",
    ),
    "one dict under two names": (
        "padding",
        "dict(output.num_scheduled_tokens)",
        "output.num_scheduled_tokens",
        "true accounts",
    ),
    "no entry for decodes": (
        "padding",
        "dict(output.num_scheduled_tokens)",
        "{r: output.num_scheduled_tokens[r] for r in prefills}",
        "padded is a bucket",
    ),
    "decodes padded as well": ("padding", "in prefills:", "in padded:", "padded is a bucket"),
    "a prefill of one token taken for a decode": (
        "padding",
        "in prefills:",
        "in [r for r in prefills if padded[r] > 1]:",
        "padded is a bucket",
    ),
    "off by one at a bucket's edge": (
        "padding",
        "get_bucket_for_count(padded[req_id], ",
        "get_bucket_for_count(min(padded[req_id] + 1, self.num_batched_tokens_buckets[-1]), ",
        "padded is a bucket",
    ),
    "only the first chunk of a prompt": (
        "padding",
        "in prefills:",
        "in [new.req_id for new in output.scheduled_new_reqs]:",
        "padded is a bucket",
    ),
    "the counts after the step": (
        "find_prefills",
        "cached.num_computed_tokens[i] <",
        "self.requests[req_id].num_computed_tokens <",
        "padded is a bucket",
    ),
    "a request that comes back decodes after its prompt": (
        "find_prefills",
        "num_prompt_tokens + written",
        "num_prompt_tokens",
        "padded is a bucket",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_solution_is_told_the_step_and_the_rule(make_class, name):
    exercise, old, new, rule = WRONG[name]
    _, packaged, options = CLASSES[exercise]
    result = compare_schedulers(make_class(exercise, old, new), packaged, **options)
    assert result.status == "not right yet"
    assert re.match(r"step \d+: ", result.message)
    assert re.findall(r"rule broken: ([\w ]+) \(", str(result)) == [rule]


@pytest.mark.parametrize("cls", [PaddedScheduler, NeuronScheduler])
def test_the_packaged_classes_refuse_an_impure_batch_in_time(cls):
    assert try_mixed_batch(cls) == try_two_prefills(cls) == batch_purity.REFUSED


def test_the_solution_refuses_an_impure_batch_in_time(make_class):
    mine = make_class("purity")
    assert try_mixed_batch(mine) == try_two_prefills(mine) == batch_purity.REFUSED


def test_who_does_not_look_accepts():
    assert try_mixed_batch(SeparatedScheduler) == batch_purity.ACCEPTED
    assert try_two_prefills(SeparatedScheduler) == batch_purity.ACCEPTED


def test_who_looks_after_the_step_is_too_late():
    class LooksAfter(SeparatedScheduler):
        def _call_base_schedule(self):
            output = super()._call_base_schedule()
            if output.scheduled_new_reqs and len(self.running) > 1:
                raise RuntimeError
            return output

    assert try_mixed_batch(LooksAfter) == try_two_prefills(LooksAfter) == batch_purity.TOO_LATE


def test_half_a_check_is_found(make_class):
    no_count = make_class("purity", "prefills > 1 or ", "")
    assert try_mixed_batch(no_count) == batch_purity.REFUSED
    assert try_two_prefills(no_count) == batch_purity.ACCEPTED


def test_a_skeleton_is_still_to_be_written():
    class Skeleton(SeparatedScheduler):
        def _call_base_schedule(self):
            raise NotImplementedError

    with pytest.raises(NotImplementedError):
        try_mixed_batch(Skeleton)
