"""Runs the solved form of notebooks: solutions put in, every check must be solved.

    python -m scripts.run_solved_notebooks [--jobs N] [--store FOLDER] [NOTEBOOK ...]

Without names it takes every notebook in notebooks/ that has exercises. The stored notebooks are
not touched: the solved form is a copy, run in the folder of the original. An error in a cell that
may not raise one, an unsolved check and an exercise without a check are failures. With --store the
solved forms are kept with their outputs, for nbval to run and compare.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

from neuron_sched_lab.course.checks.result import REQUIRE_SOLVED, SOLVED
from neuron_sched_lab.course.exercises import TAG, is_solved, master_path, solve
from scripts.freeze_notebooks import CELL_TIMEOUT, NOTEBOOKS, FreezeError, execute

CHECK_TAG = "check:"


def run_solved(path: Path, timeout: int = CELL_TIMEOUT, store_in: Path | None = None) -> list[str]:
    """Run the solved form of a notebook; say in words what is wrong with it, or nothing.

    Args:
        path: the notebook, with its master in exercises/ beside it.
        timeout: seconds that one cell may take.
        store_in: folder to store the solved form in, with its outputs.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(path, folder))
        solve(copy, master_path(path))
        if not is_solved(copy, master_path(path)):
            return ["the solutions did not all get in"]
        notebook = nbformat.read(copy, as_version=4)
    try:
        execute(notebook, path.parent, timeout)
    except FreezeError as error:
        return [str(error)]
    if store_in is not None:
        nbformat.write(notebook, store_in / path.name)
    return find_unchecked(notebook)


def find_unchecked(notebook: nbformat.NotebookNode) -> list[str]:
    """Name the exercises of a run notebook that have no solved check."""
    problems = []
    for name in _tagged(notebook, TAG):
        checks = _tagged(notebook, CHECK_TAG).get(name, [])
        if not checks:
            problems.append(f"exercise {name!r}: no cell has the tag {CHECK_TAG + name!r}")
        problems += [
            f"check {name!r}: it shows no {SOLVED!r}"
            for cell in checks
            if not any(_text(output).startswith(SOLVED) for output in cell.outputs)
        ]
    return problems


def _tagged(notebook: nbformat.NotebookNode, prefix: str) -> dict[str, list[nbformat.NotebookNode]]:
    found: dict[str, list[nbformat.NotebookNode]] = {}
    for cell in notebook.cells:
        for tag in cell.metadata.get("tags", []):
            if tag.startswith(prefix):
                found.setdefault(tag.removeprefix(prefix), []).append(cell)
    return found


def _text(output: nbformat.NotebookNode) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def main() -> int:
    """Run them; return the exit status: 0, or 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="made anew")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once (%(default)s)")
    args = parser.parse_args()
    if args.store is not None:
        shutil.rmtree(args.store, ignore_errors=True)
        args.store.mkdir(parents=True)
        shutil.copy(NOTEBOOKS / "conftest.py", args.store)  # nbval's settings
    os.environ[REQUIRE_SOLVED] = "1"  # the kernels inherit it
    paths = args.notebooks or [
        p for p in sorted(NOTEBOOKS.glob("*.ipynb")) if master_path(p).exists()
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        reports = pool.map(lambda path: _report(path, args.store), paths)
        num_failed = sum(not good for good in reports)
    print(f"{len(paths) - num_failed} passed, {num_failed} failed")
    return int(num_failed > 0)


def _report(path: Path, store_in: Path | None) -> bool:
    """Run a notebook, print what came of it, and tell whether it was good."""
    start = time.monotonic()
    try:
        problems = run_solved(path, store_in=store_in)
    except (ValueError, OSError) as error:
        problems = [str(error)]
    verdict = "; ".join(problems) or "good"
    print(f"{path.name}, solved: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
