"""Imports go one way; CONTRIBUTING.md draws the arrows."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "neuron_sched_lab"
MAY_IMPORT = {
    "scheduler": set(),
    "kernels": set(),
    "runner": {"scheduler", "kernels"},
    "lab": {"scheduler", "runner", "kernels"},
    "widgets": {"lab.trace"},
    "cli": {"lab", "scheduler", "kernels"},
}


def files_of(room):
    folder = ROOT / room if room == "kernels" else ROOT / PACKAGE / room
    return [(file, [room, *file.relative_to(folder).parts[:-1]]) for file in folder.rglob("*.py")]


def imported_modules(file, place):
    """Yield what a file imports of ours, as `room.module`; `place` is where it lies."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")]
            yield from (name.removeprefix(f"{PACKAGE}.") for name in names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = place[: len(place) + 1 - node.level]
            module = [*base, *(node.module or "").split(".")]
            yield from (".".join(filter(None, [*module, alias.name])) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            inside = node.module.removeprefix(PACKAGE).removeprefix(".")
            yield from (".".join(filter(None, [inside, alias.name])) for alias in node.names)


def is_allowed(name, room):
    allowed = MAY_IMPORT[room] | {room, "__version__"}
    return any(name == a or name.startswith(f"{a}.") for a in allowed)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_follow_the_arrows(room):
    files = files_of(room)
    assert files
    wrong = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file, place in files
        for name in imported_modules(file, place)
        if not is_allowed(name, room)
    }
    assert wrong == set()


def test_every_room_has_an_arrow():
    rooms = {p.parent.name for p in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert rooms | {"kernels"} == set(MAY_IMPORT)


def test_a_wrong_arrow_is_seen(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("from ..lab.session import Lab\nfrom neuron_sched_lab import runner\n")
    names = list(imported_modules(file, ["scheduler"]))
    assert names == ["lab.session.Lab", "runner"]
    assert not any(is_allowed(name, "scheduler") for name in names)
