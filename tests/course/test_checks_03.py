"""Lesson 03: what learners get wrong in its exercises is caught, and the rule is named."""

import re
import runpy

import pytest

from neuron_sched_lab.course.checks import compare_schedulers
from neuron_sched_lab.course.exercises import read_master
from neuron_sched_lab.scheduler import SeparatedScheduler
from scripts.freeze_notebooks import NOTEBOOKS

MASTER = read_master(NOTEBOOKS / "exercises" / "03_separation.py")
TURNS = {"neuron_config": {"max_consecutive_prefills": 2}}
STALL = {
    "max_num_batched_tokens": 64,
    "neuron_config": {"num_batched_tokens_buckets": [8, 16, 64], "max_decode_stall_tokens": 96},
}
CLASSES = {
    "separation": ("MySeparatedScheduler", None),
    "turns": ("MyTurnsScheduler", TURNS),
    "stall": ("MyStallScheduler", STALL),
}


IMPORTS = """
from neuron_sched_lab.scheduler import HoldbackScheduler, SeparatedScheduler
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count
"""


@pytest.fixture
def check(tmp_path):
    """Compare the solution of an exercise, `old` replaced by `new`, with the packaged class."""

    def check(exercise, old="", new=""):
        source = MASTER[exercise].solution
        assert old in source
        name, settings = CLASSES[exercise]
        path = tmp_path / "learner.py"
        path.write_text(IMPORTS + source.replace(old, new), encoding="utf-8")
        mine = runpy.run_path(str(path), run_name="learner")[name]
        return compare_schedulers(mine, SeparatedScheduler, settings=settings)

    return check


@pytest.mark.parametrize("exercise", CLASSES)
def test_the_solution_is_right(check, exercise):
    assert check(exercise).solved


HIDES_DECODES = """\
            self.hidden_reqs = [r for r in self.running if not self._is_prefill_request(r)]
            self.running = [r for r in self.running if self._is_prefill_request(r)]
"""
HIDES_PREFILLS = """\
            self.hidden_reqs = [r for r in self.running if self._is_prefill_request(r)]
            self.running = [r for r in self.running if not self._is_prefill_request(r)]
"""
WRONG = {
    "hides prefills instead of decodes": (
        "separation",
        HIDES_DECODES,
        HIDES_PREFILLS,
        "prefill first",
    ),
    "restores the newest first": (
        "separation",
        "self.hidden_reqs + self.running",
        "self.running + self.hidden_reqs",
        "age order",
    ),
    "forgets the branch of a new prefill": (
        "separation",
        "elif self.waiting:",
        "elif False:",
        "pure batch",
    ),
    "forgets the chunks after the first": (
        "separation",
        "if self.has_prefill_in_running:",
        "if False:",
        "pure batch",
    ),
    "gives back twice who was hidden earlier": (
        "separation",
        "self.hidden_reqs = []\n        if self.has",
        "if self.has",
        "nothing lost",
    ),
    "forgets to restore": (
        "separation",
        "self.running = self.hidden_reqs + self.running",
        "pass",
        "nothing lost",
    ),
    "one turn too late": ("turns", ">=", ">", None),
    "never begins to count again": ("turns", "if waited else 0", "if waited else 99", None),
    "counts steps for which nobody waited": ("turns", " and self.hidden_reqs", "", None),
    "one chunk too early": ("stall", "> self.limit", ">= self.limit", None),
    "forgets the chunk to come": ("stall", "+ chunk > self", "> self", None),
    "counts without padding": (
        "stall",
        "+= get_bucket_for_count(num_tokens, buckets)",
        "+= num_tokens",
        None,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_solution_is_told_the_step_and_the_rule(check, name):
    exercise, old, new, rule = WRONG[name]
    result = check(exercise, old, new)
    assert result.status == "not right yet"
    assert re.match(r"step \d+: ", result.message)
    if rule:
        assert re.findall(r"rule broken: ([\w ]+) \(", str(result)) == [rule]
