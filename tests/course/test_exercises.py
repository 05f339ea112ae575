"""Skeletons and solutions go in and out of notebooks, and a learner's work is never lost."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from neuron_sched_lab.cli import main
from neuron_sched_lab.course.exercises import (
    OWN,
    SKELETON,
    get_status,
    is_solved,
    read_master,
    reset,
    solve,
)

MASTER = '''"""Exercises of lesson.ipynb."""

import os

# %% exercise: first
# %% skeleton
def first():
    # %%timeit is no mark, and neither is this
    raise NotImplementedError

# %% solution
def first():
    return "ä"

# %% exercise: second
# %% skeleton
SECOND = None
# %% solution
SECOND = [1]
'''


@pytest.fixture
def notebook(tmp_path):
    """A notebook that was run, with two exercises, and its master."""
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "lesson.py").write_text(MASTER, encoding="utf-8")
    exercises = read_master(tmp_path / "exercises" / "lesson.py")
    cells = [new_markdown_cell("# Lesson")]
    for name, exercise in exercises.items():
        tags = {"tags": [f"exercise:{name}", "other"]}
        cells.append(new_code_cell(exercise.skeleton, metadata=tags, execution_count=1))
    cells.append(new_code_cell("1", outputs=[new_output("stream", text="1")], execution_count=3))
    path = tmp_path / "lesson.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def source(path, number):
    return nbformat.read(path, as_version=4).cells[number].source


def write_own(path, text):
    document = nbformat.read(path, as_version=4)
    document.cells[1].source = text
    nbformat.write(document, path)


def saved(path):
    return sorted((path.parent / "saved").glob("*.ipynb"))


def test_a_master_is_read(notebook):
    exercises = read_master(notebook.parent / "exercises" / "lesson.py")
    assert list(exercises) == ["first", "second"]
    assert exercises["first"].skeleton.endswith("raise NotImplementedError")
    assert exercises["first"].solution == 'def first():\n    return "ä"'


def test_solve_and_reset(notebook):
    assert get_status(notebook) == {"first": SKELETON, "second": SKELETON}
    assert solve(notebook) is None
    assert is_solved(notebook)
    assert source(notebook, 1) == 'def first():\n    return "ä"'
    assert nbformat.read(notebook, 4).cells[3].outputs
    assert reset(notebook) is None
    assert get_status(notebook) == {"first": SKELETON, "second": SKELETON}
    assert not nbformat.read(notebook, 4).cells[3].outputs
    assert nbformat.read(notebook, 4).cells[3].execution_count is None
    assert not saved(notebook)


def test_a_notebook_of_skeletons_is_left_as_it_is(notebook):
    before = notebook.read_bytes()
    assert reset(notebook) is None
    assert notebook.read_bytes() == before


@pytest.mark.parametrize("change", [solve, reset])
def test_work_is_saved_before_it_is_taken_out(notebook, change):
    write_own(notebook, "def first():\n    return 7")
    assert get_status(notebook)["first"] == OWN
    assert not is_solved(notebook)
    before = notebook.read_bytes()
    copy = change(notebook)
    assert copy.read_bytes() == before
    assert copy.name.startswith("lesson_20")
    assert (copy.parent / ".gitignore").read_text().endswith("*\n")
    assert source(notebook, 1) != "def first():\n    return 7"


def test_copies_of_the_same_second_do_not_overwrite_each_other(notebook):
    for number in range(3):
        write_own(notebook, f"mine = {number}")
        reset(notebook)
    assert sorted(source(path, 1) for path in saved(notebook)) == [
        "mine = 0",
        "mine = 1",
        "mine = 2",
    ]


def test_solving_writes_what_nbformat_writes(notebook):
    solve(notebook)
    text = notebook.read_text(encoding="utf-8")
    assert text == nbformat.writes(nbformat.reads(text, as_version=4)) + "\n"


def test_tags_that_do_not_fit_are_named(notebook):
    document = json.loads(notebook.read_text())
    document["cells"][1]["metadata"]["tags"] = ["exercise:frist"]
    notebook.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="tag 'exercise:frist' is not in lesson.py"):
        solve(notebook)
    document["cells"][1]["metadata"]["tags"] = []
    notebook.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="no cell has the tag 'exercise:first'"):
        solve(notebook)
    document["cells"][1]["metadata"]["tags"] = ["exercise:second"]
    notebook.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="tag 'exercise:second' is there twice"):
        solve(notebook)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# %% skeleton\n", "out of place"),
        ("# %% exercise: a\n# %% skeleton\nx\n", "exercise 'a' has no solution"),
        ("# %% exercise: a\n# %% skeleton\n\n# %% solution\nx\n", "'a' has no skeleton"),
        ("# %% exercise: a\n# %% skeletton\nx\n", "'# %% skeletton' is out of place"),
        ("# %% exercise: a\n# %% skeleton\nx\n# %% solution\ny\n" * 2, "'a' is there twice"),
    ],
)
def test_a_wrong_master_is_told_its_fault(tmp_path, text, message):
    path = tmp_path / "master.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_master(path)


def test_the_command_line(notebook, capsys):
    write_own(notebook, "mine")
    assert main(["solve", str(notebook)]) == 0
    assert f"{notebook}: solved; your work is in {saved(notebook)[0]}" in capsys.readouterr().out
    assert main(["reset", str(notebook)]) == 0
    assert f"{notebook}: holds the skeletons\n" in capsys.readouterr().out
    other = notebook.with_name("other.ipynb")
    other.write_bytes(notebook.read_bytes())
    assert main(["solve", str(other)]) == 2
    assert "this notebook has no exercises" in capsys.readouterr().err


def test_a_missing_notebook_leaves_the_others_alone(notebook, capsys):
    before = notebook.read_bytes()
    for missing in (str(notebook.with_name("none.ipynb")), "", str(notebook.parent)):
        assert main(["solve", str(notebook), missing]) == 2
        error = capsys.readouterr().err
        assert f"{missing!r} is no file; give a notebook" in error
        assert error.count("\n") == 1
        assert notebook.read_bytes() == before


BAD_NOTEBOOKS = {
    "empty": b"",
    "no JSON": b"not json",
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "list": b"[1]",
    "null": b"null",
    "no cells": b"{}",
    "format 3": b'{"nbformat": 3, "worksheets": []}',
    "cells are no list": b'{"cells": 5}',
    "a cell is none": b'{"cells": [5]}',
    "no metadata": b'{"cells": [{"cell_type": "code", "source": ""}]}',
    "tags are no list": b'{"cells": [{"cell_type": "code", "source": "", "metadata": {"tags": 5}}]'
    b"}",
    "no source": b'{"cells": [{"cell_type": "code", "source": 5, "metadata": {}}]}',
}


@pytest.mark.parametrize("verb", ["solve", "reset"])
@pytest.mark.parametrize("content", BAD_NOTEBOOKS.values(), ids=BAD_NOTEBOOKS)
def test_what_is_no_notebook_is_one_clear_error(notebook, capsys, verb, content):
    notebook.write_bytes(content)
    assert main([verb, str(notebook)]) == 2
    error = capsys.readouterr().err
    assert f"{notebook}: is no notebook" in error
    assert "restore it, with `git checkout" in error
    assert error.count("\n") == 1
    assert notebook.read_bytes() == content


def test_work_that_cannot_be_saved_stays(notebook):
    write_own(notebook, "mine")
    (notebook.parent / "saved").write_text("in the way")
    before = notebook.read_bytes()
    with pytest.raises(ValueError, match="saved: is no folder, so your work in lesson.ipynb"):
        solve(notebook)
    assert notebook.read_bytes() == before
