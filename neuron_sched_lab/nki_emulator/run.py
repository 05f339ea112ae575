"""Stands in for nki.jit and nki.simulate: runs a kernel's Python, its arrays as HBM tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .counts import current_counts
from .dtypes import DTYPES, cast
from .limits import NkiValidationError, require
from .neuron_core import Machine, running_on
from .storage import Buffer, Storage
from .tensor import NkiTensor

GRIDS = (1, 2)
"""Physical cores in a logical core of Trn2."""


class JitKernel:
    """A kernel; `kernel[2]` runs it on both cores of a logical core."""

    def __init__(self, function: Callable[..., Any], grid: int = 1) -> None:
        self.function, self.grid = function, grid
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __getitem__(self, grid: int) -> JitKernel:
        require(grid in GRIDS, self.__name__, "grid", "Trn2 has grids of 1 or 2", grid)
        return JitKernel(self.function, grid)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse: without nki there is no device."""
        raise RuntimeError(
            f"{self.__name__}: the emulator has no device; call nki.simulate({self.__name__})(...)"
        )


def jit(function: Callable[..., Any]) -> JitKernel:
    """Mark a function as a kernel."""
    return JitKernel(function)


def simulate(kernel: JitKernel | Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs the kernel on torch tensors or NumPy arrays.

    Results are of the kind given; arguments that the kernel writes to are changed in place. An
    argument that the kernel returns comes back as that same object.
    """
    kernel = kernel if isinstance(kernel, JitKernel) else JitKernel(kernel)

    def run(*args: Any) -> Any:
        inputs = [_Input(arg) if _is_array(arg) else None for arg in args]
        shared: list[Storage] = []
        result: Any = None
        for program in range(kernel.grid):
            tensors = [
                arg if held is None else NkiTensor(held.storage, held.storage.data)
                for arg, held in zip(args, inputs, strict=True)
            ]
            with running_on(Machine(program, kernel.grid, current_counts(), shared)):
                result = kernel.function(*tensors)
        held_inputs = [held for held in inputs if held is not None]
        for held in held_inputs:
            held.write_back()
        as_torch = any(not isinstance(held.array, np.ndarray) for held in held_inputs)
        return _export(result, held_inputs, as_torch=as_torch)

    return run


class _Input:
    """An array argument and the HBM tensor made of it, sharing memory where formats allow."""

    def __init__(self, array: Any) -> None:
        self.array = array
        is_numpy = isinstance(array, np.ndarray)
        name = array.dtype.name if is_numpy else str(array.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise NkiValidationError(
                "nki.simulate", "argument", f"its format must be one of {', '.join(DTYPES)}; "
                f"NKI has no 64-bit formats", name,
            )
        dtype = DTYPES[name]
        values = array if is_numpy else array.detach()
        if not is_numpy:
            values = (values.float() if dtype.name == "bfloat16" else values).numpy()
        self.storage = Storage(np.ascontiguousarray(values), dtype, Buffer.shared_hbm)

    def write_back(self) -> None:
        """Bring what the kernel wrote to the caller's array."""
        if not self.storage.is_dirty:
            return
        if isinstance(self.array, np.ndarray):
            if not np.shares_memory(self.array, self.storage.data):
                self.array[...] = self.storage.data
            return
        import torch

        written = torch.from_numpy(self.storage.data)
        if written.data_ptr() != self.array.data_ptr():
            self.array.copy_(written)


def _is_array(arg: Any) -> bool:
    return isinstance(arg, np.ndarray) or type(arg).__module__.startswith("torch")


def _export(result: Any, inputs: list[_Input], *, as_torch: bool) -> Any:
    if isinstance(result, tuple):
        return tuple(_export(item, inputs, as_torch=as_torch) for item in result)
    require(
        isinstance(result, NkiTensor) and result.buffer is Buffer.shared_hbm, "return", "result",
        "a kernel must return tensors in nl.shared_hbm, or its own arguments",
        getattr(result, "buffer", type(result).__name__),
    )
    for held in inputs:
        if held.storage is result.storage:
            return held.array
    if not as_torch:
        return result.data
    import torch

    return torch.from_numpy(cast(result.data, result.dtype)).to(getattr(torch, result.dtype.name))
