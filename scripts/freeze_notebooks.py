"""Runs notebooks and stores their outputs; the only way in which committed outputs are made.

    python scripts/freeze_notebooks.py [NOTEBOOK ...]            run and store
    python scripts/freeze_notebooks.py --check [NOTEBOOK ...]    only look at what is stored

Without names it takes every notebook in notebooks/. A second run writes the same bytes, so that a
change in a committed notebook is a change of what it teaches or of what the kit does.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CELL_TIMEOUT = 120
STARTUP_TIMEOUT = 120
MAX_BYTES = 100_000

METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": NATIVE_KERNEL_NAME,
    },
    # As a kernel reports it, without the version of Python, which differs from machine to machine.
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
KEPT_CELL_METADATA = ("tags", "jupyter")  # jupyter: whether the source is folded
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAY_RAISE = "raises-exception"  # the tag that nbclient, nbval and Jupyter Book all know


class FreezeError(Exception):
    """A notebook could not be run. The message names the cell and the error."""


def freeze(path: Path, timeout: int = CELL_TIMEOUT) -> None:
    """Run the notebook in a fresh kernel of this Python and store it with its outputs.

    Args:
        path: the notebook; it is left as it was if a cell fails.
        timeout: seconds that one cell may take.

    Raises:
        FreezeError: a cell raised an error, took too long or ended the kernel.
    """
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, path.parent, timeout)
    clean(notebook)
    path.write_text(serialise(notebook), encoding="utf-8")


def execute(notebook: NotebookNode, folder: Path, timeout: int) -> None:
    """Run all cells in place, in `folder`. See `freeze`."""
    for cell in notebook.cells:
        if cell.cell_type == "code":  # nothing of an earlier run may stay
            cell.outputs, cell.execution_count = [], None
    # No folder of kernelspecs: the name then means this Python, whatever a user has installed.
    specs = KernelSpecManager(kernel_dirs=[])
    sockets = Path(tempfile.mkdtemp(prefix="kernel-"))
    client = NotebookClient(
        notebook,
        # Files, not ports: kernels that start side by side lose each other's ports now and then.
        km=AsyncKernelManager(
            kernel_name=NATIVE_KERNEL_NAME,
            kernel_spec_manager=specs,
            transport="ipc",
            ip=str(sockets / "s"),
        ),
        resources={"metadata": {"path": str(folder)}},
        timeout=timeout,
        startup_timeout=STARTUP_TIMEOUT,
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,  # else a print may be stored in one piece or two, by timing
    )
    try:
        client.execute(cleanup_kc=True)
    except CellExecutionError as error:
        # The traceback goes through vLLM and fills screens; the notebook shows it when run there.
        number = 1 + max(i for i, cell in enumerate(notebook.cells) if cell.get("outputs"))
        raise FreezeError(f"cell {number}: raised {error.ename}: {error.evalue}") from error
    except (CellTimeoutError, DeadKernelError) as error:
        raise FreezeError(str(error)) from error
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def clean(notebook: NotebookNode) -> None:
    """Take out of a notebook, in place, all that differs between two runs or does not display."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        cell.metadata = nbformat.from_dict(kept)
        for output in cell.get("outputs", []):
            for clean_output in OUTPUT_CLEANERS:
                clean_output(output)


def drop_widget_view(output: NotebookNode) -> None:
    """Keep a widget's table only: without a kernel the widget shows an error in its place."""
    data = output.get("data", {})
    if "text/html" in data:
        data.pop(WIDGET_VIEW, None)


def shorten_traceback(output: NotebookNode) -> None:
    """Keep an error's name and message: a traceback names temporary files of the machine."""
    if output.output_type == "error":
        output.traceback = [f"{output.ename}: {output.evalue}"]


# Each changes one output in place. Static pictures of plotly figures belong here too.
OUTPUT_CLEANERS: tuple[Callable[[NotebookNode], None], ...] = (drop_widget_view, shorten_traceback)


def serialise(notebook: NotebookNode) -> str:
    """The text of the notebook's file."""
    return nbformat.writes(notebook) + "\n"


def find_problems(path: Path) -> list[str]:
    """Say what is wrong with a stored notebook, in words; empty if nothing is. Runs nothing."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    problems = []
    if "widgets" in notebook.metadata:
        problems.append("metadata.widgets: must not be stored, it is megabytes")
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != NATIVE_KERNEL_NAME:
        problems.append(f"kernelspec: {kernel!r} must be {NATIVE_KERNEL_NAME!r}")
    if (size := len(text.encode())) >= MAX_BYTES:
        problems.append(f"size: {size} bytes must be below {MAX_BYTES}; print or draw less")
    problems += _title_problems(notebook) + _count_problems(notebook) + _output_problems(notebook)
    if not problems:
        clean(notebook)
        if serialise(notebook) != text:
            problems.append("file: differs from what this script writes")
    return problems


def _title_problems(notebook: NotebookNode) -> list[str]:
    """One level-1 heading, at the top: screen readers and tables of contents start there."""
    titles = [
        (number, line)
        for number, cell in enumerate(notebook.cells, start=1)
        if cell.cell_type == "markdown"
        for line in _without_code(cell.source).splitlines()
        if line.startswith("# ")
    ]
    if not notebook.cells or not notebook.cells[0].source.startswith("# ") or len(titles) != 1:
        found = ", ".join(f"cell {number}: {line!r}" for number, line in titles) or "none"
        return [f"title: the first cell, and no other, must start with one '# '; found {found}"]
    return []


def _without_code(markdown: str) -> str:
    return re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)


def _count_problems(notebook: NotebookNode) -> list[str]:
    """All code cells were run once, from top to bottom."""
    counts = [
        cell.execution_count
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.strip()
    ]
    if counts != list(range(1, len(counts) + 1)):
        return [f"execution counts: {counts} must be 1, 2, 3, ...; run all cells in order"]
    return []


def _output_problems(notebook: NotebookNode) -> list[str]:
    problems = []
    for number, cell in enumerate(notebook.cells, start=1):
        may_raise = MAY_RAISE in cell.metadata.get("tags", [])
        for output in cell.get("outputs", []):
            if output.output_type == "error" and not may_raise:
                problems.append(f"cell {number}: raised {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                problems.append(f"cell {number}: wrote to stderr: {output.text.strip()[:200]}")
    return problems


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--check", action="store_true", help="run nothing, change nothing")
    parser.add_argument(
        "--timeout", type=int, default=CELL_TIMEOUT, help="seconds for one cell (%(default)s)"
    )
    return parser


def main() -> int:
    """Freeze or check; return the exit status: 0, or 1 if a notebook is not as it should be."""
    args = _parser().parse_args()
    status = 0
    for path in args.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        try:
            if not args.check:
                freeze(path, args.timeout)
            problems = find_problems(path)
        except (FreezeError, OSError, nbformat.reader.NotJSONError) as error:
            problems = [str(error)]
        print(f"{path.name}: {'; '.join(problems) or 'good'}")
        status = max(status, int(bool(problems)))
    return status


if __name__ == "__main__":
    sys.exit(main())
