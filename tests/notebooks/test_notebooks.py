"""The stored notebooks are as scripts/freeze_notebooks.py writes them, and it can tell."""

from __future__ import annotations

import re
from copy import deepcopy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts import freeze_notebooks
from scripts.freeze_notebooks import NOTEBOOKS, FreezeError, clean, find_problems, freeze

STORED = sorted(NOTEBOOKS.glob("*.ipynb"))
WIDGET = {freeze_notebooks.WIDGET_VIEW: {"model_id": "1f"}, "text/plain": "a widget"}


def make_notebook(*code_cells):
    """A good notebook: a title and these cells, which count as run."""
    for count, cell in enumerate(code_cells, start=1):
        cell.execution_count = count
    notebook = new_notebook(cells=[new_markdown_cell("# Title\n\nText."), *code_cells])
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    clean(notebook)
    return notebook


def write(notebook, path):
    path.write_text(freeze_notebooks.serialise(notebook), encoding="utf-8")
    return path


def test_the_quickstart_is_there():
    assert "00_quickstart.ipynb" in [path.name for path in STORED]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_stored_notebook_has_no_problem(path):
    assert find_problems(path) == []


def test_freezing_twice_writes_the_same_bytes(tmp_path):
    notebook = make_notebook(
        new_code_cell("import sys\nprint('one')\nsys.stdout.flush()\nprint('two')"),
        new_code_cell("6 * 7"),
        new_code_cell("{}['x']", metadata={"tags": ["raises-exception"]}),
    )
    # What JupyterLab leaves when a user saves.
    notebook.metadata.language_info["version"] = "3.9.1"
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}
    notebook.cells[1].metadata = {"execution": {"iopub.status.busy": "now"}, "scrolled": True}
    path = write(notebook, tmp_path / "trivial.ipynb")
    assert find_problems(path)

    freeze(path)
    first = path.read_bytes()
    freeze(path)

    assert path.read_bytes() == first
    assert find_problems(path) == []
    printed, returned, raised = (c.outputs for c in nbformat.read(path, 4).cells[1:])
    assert [output.text for output in printed] == ["one\ntwo\n"]
    assert returned[0].data["text/plain"] == "42"
    assert raised[0].traceback == ["KeyError: 'x'"]


def test_a_failing_cell_is_named_and_the_file_left_alone(tmp_path):
    cells = [new_code_cell("print(1)"), new_code_cell("1 / 0"), new_code_cell("2")]
    notebook = make_notebook(*cells)
    notebook.cells[3].outputs = [new_output("stream", name="stdout", text="of an earlier run")]
    path = write(notebook, tmp_path / "failing.ipynb")
    before = path.read_bytes()
    with pytest.raises(FreezeError, match=r"^cell 3: raised ZeroDivisionError: division by zero$"):
        freeze(path)
    assert path.read_bytes() == before


def test_a_widget_view_goes_only_where_a_table_stands_in():
    with_table = new_output("display_data", deepcopy(WIDGET) | {"text/html": "<table></table>"})
    alone = new_output("display_data", deepcopy(WIDGET))
    clean(make_notebook(new_code_cell("board", outputs=[with_table, alone])))
    assert set(with_table.data) == {"text/html", "text/plain"}
    assert set(alone.data) == set(WIDGET)


def add_second_title(notebook):
    notebook.cells.append(new_markdown_cell("# Another", id="x"))


def drop_title(notebook):
    del notebook.cells[0]


def run_out_of_order(notebook):
    notebook.cells[1].execution_count = 2


def run_only_in_part(notebook):
    notebook.cells[1].execution_count = None


def add_error(notebook):
    notebook.cells[1].outputs = [new_output("error", ename="KeyError", evalue="'x'", traceback=[])]


def add_stderr(notebook):
    notebook.cells[1].outputs = [new_output("stream", name="stderr", text="careful\n")]


def add_widgets(notebook):
    notebook.metadata["widgets"] = {}


def add_much_output(notebook):
    text = "x" * freeze_notebooks.MAX_BYTES
    notebook.cells[1].outputs = [new_output("stream", name="stdout", text=text)]


def change_kernel(notebook):
    notebook.metadata.kernelspec.name = "my_venv"


def add_timing(notebook):
    notebook.cells[1].metadata["execution"] = {"iopub.status.busy": "now"}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (add_second_title, "title: .*cell 3: '# Another'"),
        (drop_title, "title: .*found none"),
        (run_out_of_order, r"execution counts: \[2\]"),
        (run_only_in_part, r"execution counts: \[None\]"),
        (add_error, "cell 2: raised KeyError: 'x'"),
        (add_stderr, "cell 2: wrote to stderr: careful"),
        (add_widgets, "metadata.widgets"),
        (add_much_output, "size: .* must be below"),
        (change_kernel, "kernelspec: 'my_venv' must be 'python3'"),
        (add_timing, "file: differs"),
    ],
)
def test_each_fault_of_a_stored_notebook_is_named(tmp_path, spoil, message):
    notebook = make_notebook(new_code_cell("1"))
    path = write(notebook, tmp_path / "notebook.ipynb")
    assert find_problems(path) == []
    spoil(notebook)
    problems = find_problems(write(notebook, path))
    assert len(problems) == 1
    assert re.search(message, problems[0])


def test_a_hash_sign_in_a_code_block_is_no_title(tmp_path):
    notebook = make_notebook(new_code_cell("1"))
    notebook.cells[0].source += "\n\n```bash\n# a comment\n```"
    assert find_problems(write(notebook, tmp_path / "notebook.ipynb")) == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path):
    text = "\n".join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
