"""Exercises of the notebooks: skeletons and solutions side by side, put into a notebook and out.

A notebook NAME.ipynb has one master, `exercises/NAME.py` beside it:

    # %% exercise: lookup
    # %% skeleton
    def my_lookup(count, buckets):
        raise NotImplementedError
    # %% solution
    def my_lookup(count, buckets):
        return next(bucket for bucket in buckets if bucket >= count)

What stands before the first exercise is for the linter only. The notebook's cell is found by its
tag, `exercise:lookup`, so cells can be moved and added freely.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

MARK = "# %% "
TAG = "exercise:"
SAVED = "saved"
"""Folder beside the notebook for dated copies of a learner's work."""

SKELETON, SOLUTION, OWN = "skeleton", "solution", "own work"


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        name: as in the tag of its cell.
        skeleton: what the learner finds in the cell.
        solution: what solves it.
    """

    name: str
    skeleton: str
    solution: str


def read_master(path: str | Path) -> dict[str, Exercise]:
    """Read the exercises of one master file, by name.

    Raises:
        ValueError: a part is missing, empty or there twice; names the file, the exercise, the fix.
    """
    parts: dict[str, dict[str, list[str]]] = {}
    name = part = ""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if not line.startswith(MARK):
            if part:
                parts[name][part].append(line)
            continue
        mark = line.removeprefix(MARK).strip()
        if mark.startswith(TAG):
            name, part = mark.removeprefix(TAG).strip(), ""
            if name in parts:
                raise ValueError(f"{path}: exercise {name!r} is there twice; rename one")
            parts[name] = {}
        elif name and mark in {SKELETON, SOLUTION} and mark not in parts[name]:
            part = mark
            parts[name][part] = []
        else:
            raise ValueError(
                f"{path}: {line!r} is out of place; each exercise is {MARK}{TAG} NAME, "
                f"{MARK}{SKELETON}, {MARK}{SOLUTION}"
            )
    return {name: _make_exercise(path, name, found) for name, found in parts.items()}


def _make_exercise(path: str | Path, name: str, found: Mapping[str, list[str]]) -> Exercise:
    texts = {part: "\n".join(lines).strip() for part, lines in found.items()}
    for part in (SKELETON, SOLUTION):
        if not texts.get(part):
            raise ValueError(f"{path}: exercise {name!r} has no {part}; add {MARK}{part}")
    return Exercise(name, texts[SKELETON], texts[SOLUTION])


def master_path(notebook: str | Path) -> Path:
    """Return where the master of a notebook is."""
    notebook = Path(notebook)
    return notebook.parent / "exercises" / f"{notebook.stem}.py"


def get_status(notebook: str | Path, master: str | Path | None = None) -> dict[str, str]:
    """Tell what each exercise cell of a notebook holds: `skeleton`, `solution` or `own work`."""
    exercises, _, cells = _open(notebook, master)
    return {name: _status(cells[name], exercise) for name, exercise in exercises.items()}


def is_solved(notebook: str | Path, master: str | Path | None = None) -> bool:
    """Tell whether every exercise cell holds its solution."""
    return set(get_status(notebook, master).values()) <= {SOLUTION}


def solve(notebook: str | Path, master: str | Path | None = None) -> Path | None:
    """Put the solutions into a notebook.

    Args:
        notebook: the file, changed in place. Its outputs stay: run it again.
        master: the master; by default `exercises/NAME.py` beside the notebook.

    Returns:
        Where the learner's work was saved, or None if there was none.

    Raises:
        ValueError: the master is wrong, or the notebook lacks the cell of an exercise.
        OSError: a file cannot be read or written.
    """
    exercises, document, cells = _open(notebook, master)
    saved = _save_own_work(Path(notebook), exercises, cells)
    for name, exercise in exercises.items():
        _set_source(cells[name], exercise.solution)
    _write(Path(notebook), document)
    return saved


def reset(notebook: str | Path, master: str | Path | None = None) -> Path | None:
    """Take the learner's work out of a notebook: skeletons in, outputs out.

    A notebook that holds nothing but skeletons is left as it is. For arguments, return value and
    errors see `solve`.
    """
    exercises, document, cells = _open(notebook, master)
    if all(_status(cells[name], exercises[name]) == SKELETON for name in exercises):
        return None
    saved = _save_own_work(Path(notebook), exercises, cells)
    for name, exercise in exercises.items():
        _set_source(cells[name], exercise.skeleton)
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    _write(Path(notebook), document)
    return saved


def _open(
    notebook: str | Path, master: str | Path | None
) -> tuple[dict[str, Exercise], dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the exercises, the notebook, and its exercise cells by name."""
    path = master_path(notebook) if master is None else Path(master)
    if not Path(notebook).is_file():
        raise ValueError(f"{str(notebook)!r} is no file; give a notebook, such as 09_NAME.ipynb")
    if not path.is_file():
        raise ValueError(f"{notebook}: no master at {path}; this notebook has no exercises")
    exercises = read_master(path)
    document = _read_notebook(Path(notebook))
    cells: dict[str, dict[str, Any]] = {}
    for cell in document["cells"]:
        for tag in cell["metadata"].get("tags", []):
            if isinstance(tag, str) and tag.startswith(TAG):
                name = tag.removeprefix(TAG)
                if name in cells or name not in exercises:
                    why = "is there twice" if name in cells else f"is not in {path.name}"
                    raise ValueError(f"{notebook}: the tag {tag!r} {why}; mend the cell's tags")
                cells[name] = cell
    if missing := [name for name in exercises if name not in cells]:
        raise ValueError(
            f"{notebook}: no cell has the tag {TAG + missing[0]!r}; add it to the cell of that "
            f"exercise (in JupyterLab: Property Inspector, Cell Tags)"
        )
    return exercises, document, cells


def _read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook that has what is needed here: cells with a type, metadata and source."""
    fix = f"restore it, with `git checkout {path}` if it is the kit's"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no notebook (no JSON: {error}); {fix}") from error
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise ValueError(f"{path}: is no notebook of format 4 (no list of cells); {fix}")
    for number, cell in enumerate(cells, start=1):
        if not _is_cell(cell):
            raise ValueError(f"{path}: is no notebook of format 4 (cell {number} is none); {fix}")
    return document


def _is_cell(cell: Any) -> bool:
    return (
        isinstance(cell, dict)
        and isinstance(cell.get("cell_type"), str)
        and isinstance(cell.get("metadata"), dict)
        and isinstance(cell["metadata"].get("tags", []), list)
        and _is_source(cell.get("source"))
    )


def _is_source(source: Any) -> bool:
    lines = source if isinstance(source, list) else [source]
    return all(isinstance(line, str) for line in lines)


def _status(cell: Mapping[str, Any], exercise: Exercise) -> str:
    source = _get_source(cell).strip()
    if source == exercise.skeleton:
        return SKELETON
    return SOLUTION if source == exercise.solution else OWN


def _save_own_work(
    notebook: Path, exercises: Mapping[str, Exercise], cells: Mapping[str, Mapping[str, Any]]
) -> Path | None:
    """Copy a notebook with a learner's work in it, under a name that is not taken."""
    if all(_status(cells[name], exercises[name]) != OWN for name in exercises):
        return None
    folder = notebook.parent / SAVED
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"{folder}: is no folder, so your work in {notebook.name} cannot be saved there; "
            f"nothing was changed; rename that file"
        )
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("# A learner's own work is not the kit's.\n*\n", encoding="utf-8")
    now = datetime.now(tz=timezone.utc).astimezone()
    stem = f"{notebook.stem}_{now:%Y-%m-%d_%H%M%S}"
    for number in range(1, 1000):
        path = folder / (f"{stem}.ipynb" if number == 1 else f"{stem}_{number}.ipynb")
        try:
            with path.open("xb") as copy:
                copy.write(notebook.read_bytes())
        except FileExistsError:
            continue
        return path
    raise OSError(f"{folder}: no free name for a copy of {notebook.name}; remove old copies")


def _get_source(cell: Mapping[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _set_source(cell: dict[str, Any], source: str) -> None:
    cell["source"] = source.splitlines(keepends=True)


def _write(notebook: Path, document: Mapping[str, Any]) -> None:
    """Write a notebook as nbformat does, and whole or not at all."""
    text = json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    temporary = notebook.with_name(f".{notebook.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(notebook)
