"""Two Jupyter kernelspecs, with the environment variables that the kit wants set.

    install()                  into the user's Jupyter folder
    install(prefix=sys.prefix) into the environment that this Python runs in
    remove()                   both, from wherever Jupyter finds them
    remove(prefix=PREFIX)      both, from that environment

The notebooks do not ask for them: their metadata name `python3`, which every Jupyter has, and the
kit sets what it cannot do without by itself. The kernelspecs are for notebooks of your own, and
for a JupyterLab that serves more than one environment. NOT RUN ON HARDWARE: "(Trn2)".
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

NAMES = {"neuron-sched-lab-cpu": "cpu", "neuron-sched-lab-trn2": "trn2"}
"""Kernel name -> folder of its kernel.json."""


def install(*, user: bool = True, prefix: str | None = None) -> list[Path]:
    """Install both kernelspecs for the Python that runs this; installed ones are replaced.

    Args:
        user: into the user's Jupyter folder; False: for all users of the machine.
        prefix: into this environment instead, such as `sys.prefix`.

    Returns:
        The folders.

    Raises:
        OSError: a folder cannot be written.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    folders = []
    for name, folder in NAMES.items():
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, "kernel.json").write_text(
                json.dumps(read_spec(folder, sys.executable), indent=1), encoding="utf-8"
            )
            installed = KernelSpecManager().install_kernel_spec(
                temporary, name, user=user and prefix is None, prefix=prefix
            )
        folders.append(Path(installed))
    return folders


def read_spec(folder: str, python: str) -> dict[str, object]:
    """Return the kernel.json of "cpu" or "trn2", started by the interpreter `python`."""
    spec = json.loads((FOLDER / folder / "kernel.json").read_text(encoding="utf-8"))
    spec["argv"][0] = python
    return spec


def remove(*, prefix: str | None = None) -> list[Path]:
    """Remove both kernelspecs; return the folders removed.

    Args:
        prefix: from this environment only; by default from wherever Jupyter finds them.

    Raises:
        OSError: a folder cannot be removed.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    if prefix is not None:
        return _remove_from(Path(prefix))
    removed = []
    for name in NAMES:
        # A kernelspec of the same name in another folder may stand behind the first.
        while name in KernelSpecManager().find_kernel_specs():
            removed.append(Path(KernelSpecManager().remove_kernel_spec(name)))
    return removed


def _remove_from(prefix: Path) -> list[Path]:
    # Where install_kernel_spec(prefix=...) puts them; Jupyter itself need not look there.
    folders = [prefix / "share" / "jupyter" / "kernels" / name for name in NAMES]
    found = [folder for folder in folders if folder.is_dir()]
    for folder in found:
        shutil.rmtree(folder)
    return found
