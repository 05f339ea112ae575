"""Gets vLLM's own tests: from the source distribution of the installed version, once, into a cache.

The wheels hold no tests. pip fetches the source distribution, so pip's settings (mirror, proxy,
wheelhouse) hold, and checks it against the hash below before anything in it is run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

SHA256 = {
    "0.29.0": "c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97",
    "0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
}

# What vLLM's setup.py imports besides torch. pip runs it to make the metadata of a source
# distribution, wanted or not. Named one by one and installed without dependencies, into a folder of
# their own: they would bring another setuptools along.
BUILD_TOOLS = """
setuptools-scm==10.3.4 \
    --hash=sha256:82f34c3e3084fc2b57d397200637cc13f2338004052d2fee47baa5f0e902464e
vcs-versioning==2.6.0 \
    --hash=sha256:f8bebd1302ebc12e67ceb30fc7dd698ec969414b6fa43b30c3f14ac9b1e72c41
setuptools-rust==1.13.0 \
    --hash=sha256:666439c4d90e968bb625bcf87ec0aa02b4f49e599d2f5dc255c633a04e8eca99
semantic-version==2.10.0 \
    --hash=sha256:de78a3b8e0feda74cabc54aab2da702113e33ac9d9eb9d2389bcf1f58b7d9177
"""


class NotAvailableError(Exception):
    """The tests cannot be had. The message says why, and what to do."""


def cache_folder() -> Path:
    """Where downloads stay: $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "neuron_sched_lab" / "vllm-tests"


def get_tests(version: str, cache: Path) -> Path:
    """Return the folder that holds vLLM's `tests` package, after a download if need be.

    Args:
        version: vLLM's version, such as "0.29.0".
        cache: where to look first, and to keep the result.

    Raises:
        NotAvailableError: no network, an unknown version, or a file with another hash.
    """
    if version not in SHA256:
        raise NotAvailableError(
            f"vLLM {version}: no hash of its source distribution is known; add it to SHA256 in "
            f"tests/conformance/sdist.py (known: {', '.join(SHA256)})"
        )
    folder = cache / version
    if not (folder / "tests").is_dir():
        archive = cache / f"vllm-{version}.tar.gz"
        if not archive.exists():
            _download(version, cache)
        _check(archive, SHA256[version])
        _unpack_tests(archive, folder)
    return folder


def _download(version: str, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    tools = (cache / "build-tools").resolve()  # absolute: setup.py runs in a folder of pip's
    try:
        _pip(["install", "--quiet", "--upgrade", "--target", str(tools)], BUILD_TOOLS, os.environ)
        _pip(
            ["download", "--no-build-isolation", "--no-binary", "vllm", "--dest", str(cache)],
            f"vllm=={version} --hash=sha256:{SHA256[version]}",
            os.environ
            | {
                "PYTHONPATH": str(tools),
                "VLLM_VERSION_OVERRIDE": version,
                "VLLM_TARGET_DEVICE": "empty",
            },
        )
    except subprocess.CalledProcessError as error:
        tail = "\n".join(f"    {line}" for line in error.stderr.splitlines()[-5:])
        raise NotAvailableError(
            f"could not download the source distribution of vLLM {version}:\n{tail}\n"
            f"Check the network and pip's settings, or put vllm-{version}.tar.gz into {cache}."
        ) from error


def _pip(command: list[str], requirements: str, env: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(requirements, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        options = ["--retries", "1", "--no-deps", "--require-hashes", "-r", str(file)]
        subprocess.run(
            [*pip, *command, *options], env=env, capture_output=True, text=True, check=True
        )


def _check(archive: Path, sha256: str) -> None:
    with archive.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise NotAvailableError(
            f"{archive}: its SHA-256 {digest.hexdigest()} must be {sha256}; delete the file and "
            f"run again"
        )


def _unpack_tests(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        members = []
        for member in tar:
            _, _, name = member.name.partition("/")
            if name.startswith("tests/"):
                members.append(member.replace(name=name))
        tar.extractall(folder, members, filter="data")
