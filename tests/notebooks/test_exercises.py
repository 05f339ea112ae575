"""Every exercise of a stored notebook holds its skeleton, has a check, and is not solved yet."""

from __future__ import annotations

import ast

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from neuron_sched_lab.course.checks.result import NOT_RIGHT, NOT_SOLVED, SOLVED
from neuron_sched_lab.course.exercises import SKELETON, get_status, master_path, read_master
from scripts.freeze_notebooks import NOTEBOOKS
from scripts.run_solved_notebooks import CHECK_TAG, find_unchecked

MASTERS = sorted((NOTEBOOKS / "exercises").glob("*.py"))
WITH_EXERCISES = [NOTEBOOKS / f"{master.stem}.ipynb" for master in MASTERS]
PLACEHOLDER = "NotImplementedError"
MAX_SKELETON_LINES = 40
MAX_WRITTEN_LINES = 30

by_name = pytest.mark.parametrize("path", WITH_EXERCISES, ids=lambda path: path.name)


def read_checks(path):
    """The stored text of each check cell, by exercise."""
    found = {}
    for cell in nbformat.read(path, as_version=4).cells:
        for tag in cell.metadata.get("tags", []):
            if tag.startswith(CHECK_TAG):
                texts = [output.data["text/plain"] for output in cell.outputs if "data" in output]
                found.setdefault(tag.removeprefix(CHECK_TAG), []).append(texts[-1])
    return found


def test_every_notebook_has_exercises():
    assert sorted(NOTEBOOKS.glob("*.ipynb")) == WITH_EXERCISES


@by_name
def test_the_cells_hold_the_skeletons(path):
    assert set(get_status(path).values()) == {SKELETON}


@by_name
def test_every_exercise_has_a_check_that_it_does_not_pass_yet(path):
    checks = read_checks(path)
    assert set(checks) == set(read_master(master_path(path)))
    for name, texts in checks.items():
        assert all(text.startswith(NOT_SOLVED) for text in texts), name


@by_name
def test_what_is_written_is_short(path):
    for exercise in read_master(master_path(path)).values():
        skeleton, solution = exercise.skeleton.splitlines(), exercise.solution.splitlines()
        written = [line for line in solution if line.strip() and line not in skeleton]
        assert len(skeleton) <= MAX_SKELETON_LINES, exercise.name
        assert 0 < len(written) <= MAX_WRITTEN_LINES, exercise.name
        assert PLACEHOLDER not in exercise.solution


def find_names_from_before(source):
    """The names that a cell takes from the cells before it."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in names} - own


def find_runs_of_lab(cells):
    """`lab`, which a dashboard may move, and the names that cells give to what it ran."""
    nodes = [node for cell in cells for node in ast.parse(cell.source).body]
    assigns = [node for node in nodes if isinstance(node, ast.Assign)]
    runs = [a for a in assigns if ast.unparse(a.value).startswith(("lab.run", "lab.trace"))]
    return {"lab"} | {target.id for run in runs for target in run.targets}


@by_name
def test_no_check_depends_on_what_was_pressed_in_a_dashboard(path):
    """A check runs a Lab of its own, as a dashboard's buttons add and abort requests of `lab`."""
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    moved = find_runs_of_lab(cells)
    for cell in cells:
        if any(tag.startswith(CHECK_TAG) for tag in cell.metadata.get("tags", [])):
            assert not find_names_from_before(cell.source) & moved, cell.id


def make_run(text, *tags):
    output = new_output("execute_result", data={"text/plain": text})
    cells = [new_code_cell("def f(): ...", metadata={"tags": ["exercise:f"]})]
    cells.append(new_code_cell("check", outputs=[output], metadata={"tags": list(tags)}))
    return new_notebook(cells=cells)


def test_a_solved_run_needs_a_solved_check_for_each_exercise():
    assert find_unchecked(make_run(f"{SOLVED}: well", "check:f")) == []
    assert find_unchecked(make_run(f"{NOT_RIGHT}: no", "check:f")) == [
        "check 'f': it shows no 'solved'"
    ]
    assert find_unchecked(make_run(f"{SOLVED}: well")) == [
        "exercise 'f': no cell has the tag 'check:f'"
    ]
