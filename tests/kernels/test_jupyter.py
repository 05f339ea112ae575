"""The kernelspecs: installed, started, removed; their variables are those of the kit."""

import json
import re
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from neuron_sched_lab.cli import main
from neuron_sched_lab.kernels import jupyter
from neuron_sched_lab.settings import environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Jupyter's folders of a user that does not exist."""
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_PATH"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    return tmp_path


def test_both_are_installed_for_this_python_and_removed():
    folders = jupyter.install()
    assert [folder.name for folder in folders] == list(jupyter.NAMES)
    for name in jupyter.NAMES:
        spec = KernelSpecManager().get_kernel_spec(name)
        assert spec.argv[0] == sys.executable
        assert spec.language == "python"
    names = {json.loads((f / "kernel.json").read_text())["display_name"] for f in folders}
    assert names == {"Neuron Scheduler Lab (CPU)", "Neuron Scheduler Lab (Trn2)"}
    assert jupyter.install() == folders  # again: replaced
    assert jupyter.remove() == folders
    assert not any(folder.exists() for folder in folders)
    assert jupyter.remove() == []


def test_an_environment_can_be_named(tmp_path):
    folders = jupyter.install(prefix=str(tmp_path / "env"))
    assert folders[0] == tmp_path / "env" / "share" / "jupyter" / "kernels" / "neuron-sched-lab-cpu"
    of_the_user = jupyter.install()
    assert jupyter.remove(prefix=str(tmp_path / "env")) == folders
    assert not any(folder.exists() for folder in folders)
    assert all(folder.exists() for folder in of_the_user)
    assert jupyter.remove(prefix=str(tmp_path / "env")) == []


def test_the_command_line_takes_a_prefix(tmp_path, capsys):
    prefix = str(tmp_path / "env")
    for _ in range(2):
        assert main(["kernelspec", "install", "--prefix", prefix]) == 0
    capsys.readouterr()
    assert main(["kernelspec", "remove", "--prefix", prefix]) == 0
    assert capsys.readouterr().out.count("remove: ") == len(jupyter.NAMES)
    assert main(["kernelspec", "remove", "--prefix", prefix]) == 0
    assert capsys.readouterr().out == f"remove: nothing to remove in {prefix}\n"


@pytest.mark.parametrize("action", ["install", "remove"])
def test_a_prefix_that_is_no_folder_is_refused(tmp_path, capsys, action):
    (tmp_path / "file").touch()
    for prefix in ("", str(tmp_path / "file")):
        assert main(["kernelspec", action, "--prefix", prefix]) == 2
        assert f"--prefix: {prefix!r} is no folder" in capsys.readouterr().err


def test_their_variables_are_those_of_the_kit_and_of_make():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    of_make = dict(re.findall(r"^export (\w+) \?= (.*)$", makefile, flags=re.MULTILINE))
    of_make.pop("PYTHONUNBUFFERED")  # for logs of make itself
    for folder in jupyter.NAMES.values():
        env = jupyter.read_spec(folder, "python")["env"]
        wanted = environment.REQUIRED | environment.DEFAULTS | of_make
        if folder == "trn2":
            wanted.pop("VLLM_CPU_KVCACHE_SPACE")
        assert wanted.items() <= env.items()
        assert set(env) - set(wanted) <= {
            "NEURON_PLATFORM_TARGET_OVERRIDE",
            "NEURON_LOGICAL_NC_CONFIG",
            "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
        }


def test_a_cell_runs_in_the_cpu_kernel():
    from jupyter_client.manager import start_new_kernel

    jupyter.install()
    manager, client = start_new_kernel(kernel_name="neuron-sched-lab-cpu")
    try:
        code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['HF_HUB_OFFLINE'])"
        printed = []
        client.execute_interactive(
            code,
            timeout=60,
            output_hook=lambda message: printed.append(message["content"].get("text", "")),
        )
        assert "".join(printed).strip() == "1 1"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_notebooks_name_the_kernel_that_every_jupyter_has():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
        assert metadata["kernelspec"]["name"] == "python3", notebook.name
