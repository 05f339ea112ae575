"""Guards what SECURITY.md says: the source by its syntax tree, servers and readers by use."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_sched_lab.trace.trace import Trace
from neuron_sched_lab.workloads.workload import Workload
from tests.sockets import get_free_port, get_listening_addresses

ROOT = Path(__file__).resolve().parent.parent
# What a user runs; tests also run text on purpose.
FOLDERS = ("neuron_sched_lab", "kernels", "scripts", "benchmarks", "notebooks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SCRIPTS = sorted((ROOT / "neuron_sched_lab").rglob("*.js"))

RUN_TEXT = {"eval", "exec", "compile", "__import__"}
UNPICKLING_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml"}
UNSAFE_CALLS = {
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "subprocess.getoutput": "runs a shell",
    "subprocess.getstatusoutput": "runs a shell",
    "asyncio.create_subprocess_shell": "runs a shell",
    "joblib.load": "unpickles",
    "pd.read_pickle": "unpickles",
    "pandas.read_pickle": "unpickles",
    "tempfile.mktemp": "names a file that another can make first",
}
MUST_SAY = {
    "torch.load": ("weights_only", True),
    "tar.extractall": ("filter", "data"),
}
MUST_NOT_SAY = {"shell": True, "allow_pickle": True, "trust_remote_code": True}
EVERY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104  (looked for, not used)


def find_unsafe(tree: ast.AST) -> Iterator[str]:
    """Yield what a module may not do, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                if name.split(".")[0] in UNPICKLING_MODULES:
                    yield f"line {node.lineno}: imports {name}"
        elif isinstance(node, ast.Call):
            yield from find_unsafe_call(node)
        elif isinstance(node, ast.Constant) and node.value in EVERY_ADDRESS:
            yield f"line {node.lineno}: {node.value!r} is every network of the machine"


def find_unsafe_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    said = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
    if isinstance(call.func, ast.Name) and name in RUN_TEXT:
        yield f"line {call.lineno}: {name}() runs text"
    if name in UNSAFE_CALLS:
        yield f"line {call.lineno}: {name}() {UNSAFE_CALLS[name]}"
    if name in MUST_SAY:
        keyword, value = MUST_SAY[name]
        if said.get(keyword) != value:
            yield f"line {call.lineno}: {name}() without {keyword}={value!r}"
    for keyword in call.keywords:
        # Anything but a constant False may be true.
        if keyword.arg in MUST_NOT_SAY and said.get(keyword.arg) is not False:
            yield f"line {call.lineno}: {name}({keyword.arg}=...)"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_runs_no_text_and_unpickles_nothing(path):
    assert list(find_unsafe(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "text",
    [
        "eval(user)",
        "exec(user, {})",
        "import pickle",
        "from yaml import load",
        "import os.path, dill",
        "os.system(f'ls {user}')",
        "subprocess.run(user, shell=True)",
        "subprocess.run(user, shell=flag)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "tar.extractall(folder)",
        "server.bind(('0.0.0.0', 80))",
    ],
)
def test_the_search_finds(text):
    assert list(find_unsafe(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "device.compile(function)",
        "subprocess.run([a, b], check=True)",
        "torch.load(path, weights_only=True)",
        "tar.extractall(folder, members, filter='data')",
        "from .pickle_free import x",
    ],
)
def test_the_search_leaves_alone(text):
    assert not list(find_unsafe(ast.parse(text)))


# HTML.


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_widgets_never_take_text_for_html(path):
    code = path.read_text(encoding="utf-8")
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|import\("
    assert not re.findall(sinks, code)
    # No CDN: the only addresses are names of XML vocabularies.
    assert set(re.findall(r"https?://[^\"'` ]+", code)) <= {"http://www.w3.org/2000/svg"}


# Files of others.

DEEP = "[" * 100_000


@pytest.mark.parametrize("read", [Trace.load, Workload.read], ids=["trace", "workload"])
@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        '{"format": ' + DEEP,
        '{"input_length": ' + DEEP,
        "[" + DEEP,
        "\x00" * 1000,
        "",
        "null",
        '{"format": "neuron_sched_lab.trace", "version": 1, "config": ' + DEEP,
    ],
)
def test_files_nested_too_deep_or_of_another_kind_are_refused_by_name(read, text, tmp_path):
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("module", ["trace_file", "file_rows"])
def test_lines_that_are_too_long_are_refused_before_they_are_parsed(module, tmp_path, monkeypatch):
    from neuron_sched_lab.trace import trace_file
    from neuron_sched_lab.workloads import file_rows

    home, read = {
        "trace_file": (trace_file, Trace.load),
        "file_rows": (file_rows, Workload.read),
    }[module]
    assert home.MAX_LINE_LENGTH <= 64_000_000
    monkeypatch.setattr(home, "MAX_LINE_LENGTH", 100)
    monkeypatch.setattr(home.json, "loads", lambda text: pytest.fail("it was parsed"))
    path = tmp_path / "file"
    path.write_text('{"input_length": "' + "x" * 200 + '"}', encoding="utf-8")
    with pytest.raises(ValueError, match="longer than 100 characters"):
        list(read(path))


# JupyterLab, as `make lab` starts it.


def test_jupyterlab_listens_on_loopback_and_wants_its_token(tmp_path):
    start_lab = _load_script("start_lab")
    port = get_free_port()
    command = start_lab.lab_arguments("a.ipynb", port, root_user=os.geteuid() == 0)
    folders = {
        f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("RUNTIME", "CONFIG", "DATA")
    }
    with (tmp_path / "log").open("wb") as log:
        jupyter = subprocess.Popen(
            [*command, "--no-browser"],
            env={**os.environ, **folders},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        token = _wait_for_token(tmp_path / "RUNTIME", jupyter)
        assert len(token) >= 32
        address = f"http://{start_lab.HOST}:{port}/api/contents"
        assert _get_status(address, "") == 403
        assert _get_status(address, "wrong") == 403
        assert _get_status(address, token) == 200
        if sys.platform == "linux":
            assert get_listening_addresses(jupyter.pid) == {start_lab.HOST}
    except BaseException:
        print((tmp_path / "log").read_text(errors="replace"))
        raise
    finally:
        os.killpg(jupyter.pid, signal.SIGKILL)
        jupyter.wait()


def _wait_for_token(folder: Path, jupyter: subprocess.Popen) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and jupyter.poll() is None:
        for path in folder.glob("jpserver-*.json"):
            if text := path.read_text(encoding="utf-8"):
                return json.loads(text)["token"]
        time.sleep(0.1)
    raise AssertionError("JupyterLab did not start")


def _get_status(address: str, token: str) -> int:
    request = urllib.request.Request(address, headers={"Authorization": f"token {token}"})  # noqa: S310
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return response.status
        except urllib.error.HTTPError as error:  # noqa: PERF203
            return error.code
        except urllib.error.URLError:
            time.sleep(0.1)  # it writes its file before it listens
    raise AssertionError(f"{address} does not answer")


def _load_script(name: str):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
