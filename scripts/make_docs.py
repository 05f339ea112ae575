"""Makes the API reference from the docstrings, with pdoc.

    python -m scripts.make_docs FOLDER

The first page has the public surface, `neuron_sched_lab`; every module has a page of its own.
A warning of pdoc is an error.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, get_type_hints

from neuron_sched_lab.settings.environment import prepare_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PACKAGE = "neuron_sched_lab"
# What begins to run when it is imported.
LEFT_OUT = ("__main__", "vllm_command")


def make_docs(folder: Path) -> int:
    """Write the reference to `folder`; return the number of its pages.

    Raises:
        Warning: whatever pdoc warns of.
    """
    prepare_environment()
    modules = list(_import_all(PACKAGE))
    from pdoc import pdoc, render

    for module in modules:
        _show_to_pdoc(module)
    render.configure(docformat="google", show_source=False, search=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"pdoc(\..*)?$")
        warnings.filterwarnings("error", message=".*(pdoc|docstring|[Cc]annot|Error ).*")
        pdoc(PACKAGE, output_directory=folder)
    return len(list(folder.rglob("*.html")))


def _import_all(name: str) -> Iterator[ModuleType]:
    """Import a package and everything below it."""
    package = import_module(name)
    yield package
    for found in iter_modules(package.__path__):
        if found.ispkg:
            yield from _import_all(f"{name}.{found.name}")
        elif found.name not in LEFT_OUT:
            yield import_module(f"{name}.{found.name}")


def _show_to_pdoc(module: ModuleType) -> None:
    """Put what pdoc looks for where it looks: into the dictionary and the `__all__` of a module.

    These are the names that only type checkers import, those that a package imports when they are
    first asked for, and the modules that a package's `__all__` leaves out.
    """
    from pdoc.doc_types import _eval_type_checking_sections

    _eval_type_checking_sections(module, set())
    for thing in list(vars(module).values()):
        # A named tuple's constructor does not know in which module its annotations have a meaning.
        if isinstance(thing, type) and hasattr(thing, "_fields") and hasattr(thing, "_asdict"):
            thing.__new__.__annotations__ = get_type_hints(thing)
    public = getattr(module, "__all__", None)
    if public is None or not hasattr(module, "__path__"):
        return
    for name in public:
        setattr(module, name, getattr(module, name))
    inside = {found.name for found in iter_modules(module.__path__)} - {*LEFT_OUT, *public}
    vars(module)["__all__"] = [*public, *sorted(inside)]


def main() -> int:
    """Make them; return the exit status."""
    folder = Path(sys.argv[1])
    print(f"{make_docs(folder)} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
