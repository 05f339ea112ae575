"""Makes the API reference from the docstrings, with pdoc.

    python -m scripts.make_docs FOLDER

The first page has the public surface, `neuron_sched_lab`; every module has a page of its own.
A warning of pdoc is an error.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from neuron_sched_lab.settings.environment import prepare_environment

PACKAGE = "neuron_sched_lab"
# What begins to run when it is imported.
LEFT_OUT = ("__main__", "vllm_command")


def make_docs(folder: Path) -> int:
    """Write the reference to `folder`; return the number of its pages.

    Raises:
        Warning: whatever pdoc warns of.
    """
    prepare_environment()
    from pdoc import pdoc, render

    render.configure(docformat="google", show_source=True, search=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"pdoc(\..*)?$")
        warnings.filterwarnings("error", message=".*(pdoc|docstring|[Cc]annot|Error ).*")
        pdoc(PACKAGE, *(f"!{PACKAGE}.{name}" for name in LEFT_OUT), output_directory=folder)
    return len(list(folder.rglob("*.html")))


def main() -> int:
    """Make them; return the exit status."""
    folder = Path(sys.argv[1])
    print(f"{make_docs(folder)} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
