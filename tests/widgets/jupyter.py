"""A real JupyterLab on 127.0.0.1, and one page of it in headless Chromium."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import nbformat

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_SECONDS = 60
MS = 1000


class Jupyter:
    """A running server: where it listens, and the folder that it serves."""

    def __init__(self, port, token, root):
        self.port, self.token, self.root = port, token, root
        self.url = f"http://127.0.0.1:{port}"

    def write_notebook(self, name, *cells):
        """Store a notebook of code cells, without outputs."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, self.root / name)
        return name

    def shut_down_kernels(self):
        for kernel in self._request("kernels"):
            self._request(f"kernels/{kernel['id']}", "DELETE")

    def _request(self, path, method="GET"):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, f"/api/{path}?token={self.token}")
            return json.loads(connection.getresponse().read() or "null")
        finally:
            connection.close()


@contextmanager
def start_jupyter(home, **environment):
    """Start JupyterLab with `home` as its only place for files; stop it at the end."""
    root = home / "notebooks"
    root.mkdir()
    # Without it Lab asks whether it may fetch news, over everything else.
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    log = (home / "jupyter.log").open("w")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyterlab", "--no-browser"),
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={root}",
            "--ServerApp.allow_root=True",
            "--ServerApp.terminals_enabled=False",
            f"--IdentityProvider.token={token}",
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
        ],
        env=_user_environment() | {n: str(home / f) for n, f in folders.items()} | environment,
        start_new_session=True,
        stdout=log,
        stderr=log,
    )
    try:
        jupyter = Jupyter(port, token, root)
        _wait_until_up(jupyter, server)
        yield jupyter
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(START_SECONDS)
        log.close()


def _user_environment():
    """Return ours without pytest's mark: with it ipykernel leaves sys.stdout no descriptor."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _wait_until_up(jupyter, server):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, "JupyterLab ended at once; see jupyter.log"
        try:
            jupyter._request("status")
        except (OSError, HTTPException):
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"JupyterLab is not up after {START_SECONDS} s; see jupyter.log")


class LabPage:
    """A notebook in a page of JupyterLab.

    Attributes:
        page: Playwright's page.
        foreign: addresses asked for outside 127.0.0.1; must stay empty.
        errors: uncaught errors in the page's own scripts.
    """

    def __init__(self, page, jupyter):
        self.page, self.jupyter = page, jupyter
        self.foreign, self.errors = [], []
        page.on("request", self._note_request)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note_request(self, request):
        if request.url.startswith("http") and "//127.0.0.1:" not in request.url:
            self.foreign.append(request.url)

    def open(self, notebook, *, sidebar=False):
        """Load a notebook and wait for its kernel."""
        page = self.page
        # `reset`: no notebooks of an earlier page.
        page.goto(f"{self.jupyter.url}/lab/tree/{notebook}?token={self.jupyter.token}&reset")
        page.wait_for_function("window.jupyterapp", timeout=60 * MS)
        page.evaluate("window.jupyterapp.restored.then(() => 1)")
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60 * MS)
        page.evaluate(
            "async () => { const w = window.jupyterapp.shell.currentWidget;"
            " await w.context.ready; await w.sessionContext.ready }"
        )
        if not sidebar:
            page.evaluate("window.jupyterapp.shell.collapseLeft()")

    def command(self, name, **args):
        """Run one of JupyterLab's commands; `notebook:run-all-cells` ends when all have run."""
        return self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => 1)",
            [name, args],
        )

    def run_all(self):
        self.command("notebook:run-all-cells")
        errors = self.cell_errors()
        assert not errors, errors

    def run_cell(self, index):
        self.page.evaluate(
            "i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i }", index
        )
        self.command("notebook:run-cell")

    def cell_errors(self):
        return self.page.evaluate(
            "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells"
            ".flatMap(c => c.outputs || []).filter(o => o.output_type === 'error')"
            ".map(o => o.ename + ': ' + o.evalue)"
        )

    def set_theme(self, theme):
        self.command("apputils:change-theme", theme=theme)
        dark = "false" if "Dark" in theme else "true"
        self.page.wait_for_selector(f"body[data-jp-theme-light='{dark}']", state="attached")
        self.page.wait_for_timeout(600)  # the style sheet is loaded, then the canvases follow

    def test_id(self, name):
        return self.page.get_by_test_id(name)

    def button(self, name):
        return self.page.get_by_role("button", name=name, exact=True)
