"""Copies of the NKI kernels, with a change in their source."""

from __future__ import annotations

import importlib
import itertools
import shutil
from pathlib import Path

from neuron_sched_lab import nki_emulator as emulator
from neuron_sched_lab.kernels import nki_kernels
from neuron_sched_lab.kernels.nki_kernels.arguments import (
    decode_arguments,
    prefill_arguments,
    update_arguments,
)

SOURCE = Path(nki_kernels.__file__).parent
USE_EMULATOR = ("nki_or_emulator.py", 'importlib.util.find_spec("nki") is not None', "False")
_number = itertools.count()


class Copy:
    """The kernels of a copied source, under the emulator, called like dispatch.Kernels."""

    def __init__(self, package):
        self.package = package

    def segmented_attention(self, *args):
        kernel = emulator.simulate(self.package.segmented_attention_kernel)
        return kernel(*prefill_arguments(*args))

    def paged_decode_attention(self, *args):
        kernel = emulator.simulate(self.package.paged_decode_attention_kernel)
        return kernel(*decode_arguments(*args))

    def kv_cache_update(self, *args):
        emulator.simulate(self.package.kv_cache_update_kernel)(*update_arguments(*args))


def copy_kernels(folder, monkeypatch, *changes):
    """Copy the kernels to a folder, make each (file, old, new) change, and import them."""
    name = f"planted_{next(_number)}"
    package = folder / name
    kernels = package / "kernels" / "nki_kernels"
    shutil.copytree(SOURCE, kernels, ignore=shutil.ignore_patterns("__pycache__"))
    for made in (package, kernels.parent):
        (made / "__init__.py").touch()
    (package / "nki_emulator").mkdir()
    (package / "nki_emulator" / "__init__.py").write_text(
        "from neuron_sched_lab.nki_emulator import isa, jit, language, simulate\n"
    )
    for file, old, new in (USE_EMULATOR, *changes):
        path = kernels / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return Copy(importlib.import_module(f"{name}.kernels.nki_kernels"))
