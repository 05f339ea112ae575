"""For nbval: notebooks are run as a user's JupyterLab would run them."""

import os
import tempfile
from functools import partial
from pathlib import Path

import nbval.kernel
from jupyter_client.manager import KernelManager

# nbval formats every message of the kernel for a debug log that nobody reads; for large widget
# messages that takes longer than the cell.
nbval.kernel.pformat = lambda _message: ""

_start_new_kernel = nbval.kernel.start_new_kernel


def _start_kernel_as_a_user_would(**options: object) -> object:
    """Start a kernel without pytest's mark: with it ipykernel leaves sys.stdout no descriptor.

    It talks through files, not ports: kernels that start side by side lose each other's ports.
    """
    sockets = Path(tempfile.mkdtemp(prefix="kernel-")) / "s"
    nbval.kernel.KernelManager = partial(KernelManager, transport="ipc", ip=str(sockets))
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return _start_new_kernel(env=env, **options)


nbval.kernel.start_new_kernel = _start_kernel_as_a_user_would
