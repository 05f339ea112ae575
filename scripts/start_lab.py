"""Starts JupyterLab on 127.0.0.1 with one notebook open. Run by `make lab`, with .venv's Python."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
TRIES = 20


def free_port(first: int) -> int:
    """The first free port of the TRIES from `first` on; raises OSError if there is none."""
    for port in range(first, min(first + TRIES, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    message = f"no free port from {first} on ({TRIES} tried); choose another: make lab PORT=9000"
    raise OSError(message)


def lab_arguments(notebook: str, port: int, *, root_user: bool) -> list[str]:
    """The command line of JupyterLab. Its default token, random at every start, stays on."""
    return [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.ip={HOST}",
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={ROOT}",
        # Jupyter refuses root unless told; containers and cloud machines often have no other user.
        f"--ServerApp.allow_root={root_user}",
        "--LabApp.extension_manager=readonly",
        # Not as an argument: the address that Jupyter prints would then lead past the notebook.
        f"--LabApp.default_url=/lab/tree/{notebook}",
    ]


def main() -> None:
    """Replaces this process by JupyterLab."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", help="path from the top of the repository")
    parser.add_argument("--port", type=int, default=8888)
    options = parser.parse_args()
    if not (ROOT / options.notebook).is_file():
        sys.exit(f"{options.notebook}: no such notebook")
    try:
        port = free_port(options.port)
    except OSError as error:
        sys.exit(str(error))
    if port != options.port:
        print(f"port {options.port} is in use; JupyterLab takes {port}")
    print("JupyterLab opens in the browser; without one, open the address below.")
    print("Ctrl+C twice ends it.", flush=True)
    command = lab_arguments(options.notebook, port, root_user=os.geteuid() == 0)
    os.execv(command[0], command)  # noqa: S606 (no shell is the point)


if __name__ == "__main__":
    main()
