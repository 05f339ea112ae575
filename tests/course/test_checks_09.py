"""Lesson 9: what learners get wrong is caught by the notebook's own check cells, and named."""

import re

import nbformat
import pytest

from neuron_sched_lab.course.exercises import read_master
from scripts.freeze_notebooks import NOTEBOOKS

NOTEBOOK = NOTEBOOKS / "09_experiments.ipynb"
MASTER = read_master(NOTEBOOKS / "exercises" / "09_experiments.py")


def cells():
    return [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]


def source_of(text):
    (source,) = (c.source for c in cells() if text in c.source)
    return source


def run(*sources):
    """Run cells; return the names that they define, and the value at the end of the last."""
    names = {"__name__": "__main__"}
    for source in sources[:-1]:
        exec(compile(source, "cell", "exec"), names)  # noqa: S102 (the project's own notebook)
    last = re.sub("^check_value", "result = check_value", sources[-1], flags=re.MULTILINE)
    exec(compile(last, "cell", "exec"), names)  # noqa: S102
    return names


TRACE = source_of("trace = bursty(")
SIMULATE = "from neuron_sched_lab.simulation.simulation import simulate"
CHECK_VALUE = "from neuron_sched_lab.course.checks import ValueRule, check_value"
SOLUTION = MASTER["policy"].solution


def check_policy(solution):
    return run(TRACE, SIMULATE, solution, source_of("policy_check = "))["policy_check"]


def with_rank(body):
    head, _, _ = SOLUTION.partition("    def rank(")
    return f"{head}    def rank(self, request):\n        {body}\n"


def test_aging_is_right():
    assert check_policy(SOLUTION).solved


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("return request.num_prompt_tokens", "nobody starves"),
        ("return self.waits_since[request.request_id]", "short first"),
        ("return -request.num_prompt_tokens", "nobody starves"),
    ],
)
def test_a_policy_that_somebody_pays_too_much_for(body, rule):
    result = check_policy(with_rank(body))
    assert not result.solved
    assert any(f"rule broken: {rule} (" in detail for detail in result.details)


def test_a_policy_that_loses_requests():
    loses = SOLUTION.replace("self.waiting.extend(queue)", "self.waiting.extend(queue[:4])")
    assert "rule broken: nobody lost (" in check_policy(loses).details[0]


def test_a_rank_that_is_not_written_is_not_solved():
    assert "not solved yet" in str(check_policy(MASTER["policy"].skeleton))


@pytest.mark.parametrize(
    ("buckets", "rule"),
    [
        ("[256, 512, 1024, 1536, 2048]", "four"),
        ("[256, 512, 1024]", "last"),
        ("[128, 256, 1024, 2048]", "less padding"),
    ],
)
def test_four_buckets(buckets, rule):
    setting = source_of("POWERS_OF_TWO = ")
    check = source_of("lambda: MY_BUCKETS")
    result = run(TRACE, CHECK_VALUE, setting, f"MY_BUCKETS = {buckets}", check)["result"]
    assert f"rule broken: {rule} (" in result.details[0]


@pytest.mark.parametrize(
    ("config", "missed"),
    [
        ({}, {"rung 2", "rung 3", "rung 4", "rung 5", "rung 6"}),
        ({"kv_admission": "banker"}, {"rung 3", "rung 4", "rung 5"}),
        ({"kv_admission": "banker", "max_consecutive_prefills": 1}, {"rung 3", "rung 5"}),
    ],
)
def test_rungs_of_the_sandbox(config, missed):
    mine = f"from neuron_sched_lab import NeuronScheduler as MY_SCHEDULER\nMY_CONFIG = {config}"
    check = source_of("MY_CONFIG is None else")
    result = run(TRACE, SIMULATE, CHECK_VALUE, mine, check)["result"]
    assert {detail.split("broken: ")[1].split(" (")[0] for detail in result.details} == missed
