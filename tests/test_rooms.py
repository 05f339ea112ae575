"""Imports go one way between rooms and in no circle between modules; CONTRIBUTING.md draws it."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "neuron_sched_lab"
MAX_ROOM_LINES = 3500
MAX_FOLDER_MODULES = 15

MAY_IMPORT: dict[str, set[str]] = {
    "settings": set(),
    "scheduler": set(),
    "trace": set(),
    "tiny_model": set(),
    "nki_emulator": set(),
    "workloads": {"settings"},
    "kernels": {"nki_emulator"},
    "runner": {"scheduler", "kernels"},
    "engine": {"settings", "scheduler", "runner", "trace", "workloads", "tiny_model"},
    "simulation": {"settings", "scheduler", "kernels", "engine", "trace", "workloads"},
    "reports": {"trace"},
    "experiments": {"settings", "scheduler", "trace", "workloads", "simulation", "reports"},
    "course": {"settings", "scheduler", "runner", "trace", "simulation", "tiny_model"},
    "machine": {"settings", "scheduler", "kernels", "runner", "engine", "course", "tiny_model"},
    "widgets": {"trace"},
    "cli": {
        "settings", "scheduler", "kernels", "engine", "trace", "workloads", "simulation",
        "reports", "experiments", "course", "machine",
    },
}  # fmt: skip
"""By room, the rooms that it may import. A room stands behind all that it imports."""


def folder_of(room: str) -> Path:
    return ROOT / room if room == "kernels" else ROOT / PACKAGE / room


def read_modules() -> dict[str, Path]:
    """Every module of a room, by its name without the package's."""
    modules = {}
    for room in MAY_IMPORT:
        for file in sorted(folder_of(room).rglob("*.py")):
            parts = [room, *file.relative_to(folder_of(room)).with_suffix("").parts]
            modules[".".join(p for p in parts if p != "__init__")] = file
    return modules


MODULES = read_modules()


def imported_names(tree: ast.AST, module: str, *, is_package: bool):
    """Yield what a module imports of ours, functions and type hints included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")]
            yield from (name.removeprefix(f"{PACKAGE}.") for name in names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            place = module.split(".") if is_package else module.split(".")[:-1]
            base = place[: len(place) + 1 - node.level]
            names = [*base, *(node.module or "").split(".")]
            yield from (".".join(filter(None, [*names, alias.name])) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
            inside = node.module.removeprefix(PACKAGE).removeprefix(".")
            yield from (".".join(filter(None, [inside, alias.name])) for alias in node.names)


def imports_of(module: str) -> set[str]:
    """The names that a module imports of ours."""
    file = MODULES[module]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return set(imported_names(tree, module, is_package=file.name == "__init__.py"))


def find_module(name: str, modules=MODULES) -> str:
    """The module in which an imported name lies: itself, or what it is taken from."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def find_circle(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_follow_the_arrows(room):
    allowed = MAY_IMPORT[room] | {room, "__version__"}
    wrong = {
        f"{module} imports {name}"
        for module in MODULES
        if module.split(".")[0] == room
        for name in imports_of(module)
        if name.split(".")[0] not in allowed
    }
    assert wrong == set()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_no_arrow_is_drawn_that_nobody_uses(room):
    used = {
        name.split(".")[0]
        for module in MODULES
        if module.split(".")[0] == room
        for name in imports_of(module)
    }
    assert MAY_IMPORT[room] <= used


def test_no_modules_import_each_other_in_a_circle():
    edges = {
        module: {find_module(name) for name in imports_of(module)} - {"", module}
        for module in MODULES
    }
    assert sum(map(len, edges.values())) > 100
    assert find_circle(edges) == []


def test_no_rooms_import_each_other_in_a_circle():
    assert find_circle(MAY_IMPORT) == []


def test_every_folder_is_a_room():
    folders = {p.parent.name for p in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert folders | {"kernels"} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_is_small(room):
    files = list(folder_of(room).rglob("*.py"))
    num_lines = sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
    assert 0 < num_lines <= MAX_ROOM_LINES
    for folder in {f.parent for f in files}:
        own = [f.name for f in folder.glob("*.py") if f.name != "__init__.py"]
        assert len(own) <= MAX_FOLDER_MODULES, folder


def test_the_drawing_shows_the_arrows():
    """CONTRIBUTING.md draws each room with exactly the rooms that it may import."""
    drawn = {}
    for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines():
        left, arrow, right = line.partition(" -> ")
        if arrow and left.startswith("    "):
            drawn[left.strip().rstrip("/")] = {
                name.strip().rstrip("/") for name in right.split(",") if name.strip() != "nothing"
            }
    assert {room: drawn.get(room) for room in MAY_IMPORT} == MAY_IMPORT


def test_tests_stand_in_the_folders_of_the_rooms():
    own = {"benchmarks", "conformance", "notebooks", "serving"}
    folders = {p.parent.name for p in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - own - {"settings"} == set(MAY_IMPORT) - {"settings"}


@pytest.mark.parametrize(
    "source",
    [
        "from ..engine.lab import Lab",
        "def f():\n    from ..engine.lab import Lab",
        "if TYPE_CHECKING:\n    from neuron_sched_lab.engine.lab import Lab",
        "import neuron_sched_lab.engine.lab",
        "from .. import engine",
    ],
)
def test_a_wrong_arrow_is_seen(source):
    names = set(imported_names(ast.parse(source), "scheduler.x", is_package=False))
    assert {name.split(".")[0] for name in names} == {"engine"}


def test_a_circle_is_seen():
    a = imported_names(ast.parse("def f():\n    from .b import g"), "room.a", is_package=False)
    b = imported_names(ast.parse("from . import a"), "room.b", is_package=False)
    modules = {"room.a", "room.b"}
    edges = {"room.a": {find_module(n, modules) for n in a}}
    edges["room.b"] = {find_module(n, modules) for n in b}
    assert set(find_circle(edges)) == modules
