"""The checks that stand in cells of lesson 01: what is right passes, and a near miss does not."""

from __future__ import annotations

import runpy

import nbformat
import pytest

from neuron_sched_lab.course.checks import ValueRule, check_value
from neuron_sched_lab.course.exercises import read_master
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count
from scripts.freeze_notebooks import NOTEBOOKS

NOTEBOOK = NOTEBOOKS / "01_buckets.ipynb"
MASTER = read_master(NOTEBOOKS / "exercises" / "01_buckets.py")
BOUNDED = MASTER["bounded_waste"].solution
NAMES = {
    "ValueRule": ValueRule,
    "check_value": check_value,
    "get_bucket_for_count": get_bucket_for_count,
}


@pytest.fixture
def check(tmp_path):
    """Run the check cell of an exercise after `answer`; return what it shows."""

    def check(exercise, answer):
        (cell,) = (
            cell
            for cell in nbformat.read(NOTEBOOK, as_version=4).cells
            if f"check:{exercise}" in cell.metadata.get("tags", [])
        )
        *lines, last = cell.source.splitlines()
        assert last in {"bounded_check", ")"}
        if last == ")":  # the cell ends in a call
            start = len(lines) - 1 - lines[::-1].index("check_value(")
            lines[start] = "shown = check_value("
        else:
            last = f"shown = {last}"
        path = tmp_path / "cells.py"
        path.write_text("\n".join([answer, *lines, last]), encoding="utf-8")
        return runpy.run_path(str(path), init_globals=NAMES)["shown"]

    return check


@pytest.mark.parametrize("rows", ["[1, 2, 4, 6, 6, 8]", "(1, 2, 4, 6, 6, 8)"])
def test_the_rows_may_be_a_list_or_a_tuple(check, rows):
    assert check("decode_rows", f"MY_ROWS = {rows}").solved


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ("[1, 2, 4, 8, 6, 8]", "batch of 5"),
        ("[1, 2, 3, 6, 6, 8]", "batch of 3"),
        ("[1, 2, 4, 6, 6]", "six numbers"),
        ("7", "six numbers"),
    ],
)
def test_the_wrong_row_is_named(check, rows, rule):
    result = check("decode_rows", f"MY_ROWS = {rows}")
    assert not result.solved
    assert f"rule broken: {rule} " in str(result)


def test_the_bounded_ladder(check):
    assert check("bounded_waste", BOUNDED).solved


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("(ladder[-1] + 1) /", "ladder[-1] /", "shortest"),  # forgets the "one more"
        ("(ladder[-1] + 1) /", "(ladder[-1] + 2) /", "bounded"),
        ("min(last, int((ladder[-1] + 1) / (1 - waste)))", "min(last, 3 * ladder[-1])", "bounded"),
        ("min(last, int((ladder[-1] + 1) / (1 - waste)))", "ladder[-1] + 1", "shortest"),
        ("[first]", "[128]", "it begins"),
        ("return ladder", "return [*ladder, last]", "it ascends"),
        ("return ladder", "return ladder[:-1] or ladder", "it closes"),
    ],
)
def test_a_wrong_bounded_ladder_is_named(check, old, new, rule):
    assert old in BOUNDED
    result = check("bounded_waste", BOUNDED.replace(old, new))
    assert not result.solved
    assert f"rule broken: {rule} " in str(result)


def test_a_ladder_learnt_by_heart_does_not_pass(check):
    solve = runpy.run_path(str(NOTEBOOKS / "exercises" / "01_buckets.py"))["my_bounded_ladder"]
    literal = f"def my_bounded_ladder(first, last, waste):\n    return {solve(128, 8192, 0.25)}"
    assert not check("bounded_waste", literal).solved


def test_no_cell_is_solved_without_an_answer(check):
    assert not check("decode_rows", "MY_ROWS = None").solved
    assert not check("bounded_waste", MASTER["bounded_waste"].skeleton).solved
