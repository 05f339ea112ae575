"""Stands in for nki.language: memory, formats, operators, loops; what the kernels use of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import DType, bfloat16, float32, int32, uint8, uint32
from .limits import (
    MATMUL_MOVING_COLUMNS,
    MATMUL_STATIONARY_COLUMNS,
    NUM_PARTITIONS,
    PSUM_BANK_BYTES,
    PSUM_BANKS,
    SBUF_BYTES,
    require,
)
from .neuron_core import current_machine
from .storage import Buffer
from .tensor import NkiTensor, VirtualRegister, allocate

__all__ = ["bfloat16", "float32", "int32", "uint8", "uint32"]

sbuf, psum, hbm, shared_hbm = Buffer.sbuf, Buffer.psum, Buffer.hbm, Buffer.shared_hbm


class tile_size:  # noqa: N801  (nki's name)
    """Sizes of the hardware, under nki's names."""

    pmax = NUM_PARTITIONS
    psum_bank_fmax = PSUM_BANK_BYTES // 4
    psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_num_banks = PSUM_BANKS
    gemm_stationary_fmax = MATMUL_STATIONARY_COLUMNS
    gemm_moving_fmax = MATMUL_MOVING_COLUMNS
    sbuf_fmax_bytes = SBUF_BYTES


@dataclass(frozen=True)
class Operator:
    """An operator for the `op` of an instruction.

    Attributes:
        name: as in nki.language.
        function: of one or two NumPy arrays.
        is_bitwise: for integers only.
        reduce: over the last axis, if it can reduce.
    """

    name: str
    function: Callable[..., Any]
    is_bitwise: bool = False
    reduce: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"nl.{self.name}"


add = Operator("add", np.add, reduce=np.add.reduce)
subtract = Operator("subtract", np.subtract)
multiply = Operator("multiply", np.multiply)
minimum = Operator("minimum", np.minimum, reduce=np.minimum.reduce)
maximum = Operator("maximum", np.maximum, reduce=np.maximum.reduce)
greater = Operator("greater", np.greater)
greater_equal = Operator("greater_equal", np.greater_equal)
bitwise_and = Operator("bitwise_and", np.bitwise_and, is_bitwise=True)
exp = Operator("exp", np.exp)


def ndarray(
    shape: Sequence[int], dtype: DType, buffer: Buffer = Buffer.sbuf
) -> NkiTensor:
    """Allocate a tensor; floats are NaN, integers 4, until somebody writes.

    Raises:
        NkiValidationError: it does not fit where it shall live.
    """
    return allocate(current_machine("nl.ndarray"), shape, dtype, buffer)


def program_id(axis: int) -> int:
    """Number of this core in the grid."""
    require(axis == 0, "nl.program_id", "axis", "a grid has the one axis 0", axis)
    return current_machine("nl.program_id").program_id


def num_programs(axis: int) -> int:
    """Cores in the grid."""
    require(axis == 0, "nl.num_programs", "axis", "a grid has the one axis 0", axis)
    return current_machine("nl.num_programs").num_programs


def fori_loop(
    lower: int | VirtualRegister,
    upper: int | VirtualRegister,
    body_fun: Callable[[VirtualRegister], object],
    step: int = 1,
) -> None:
    """Loop on the device: the bounds may be registers; the body gets its index as a register."""
    require(
        isinstance(step, int) and step > 0, "nl.fori_loop", "step", "it must be a positive int",
        step,
    )
    start, stop = (
        bound._value if isinstance(bound, VirtualRegister) else bound for bound in (lower, upper)
    )
    for index in range(start, stop, step):
        result = body_fun(VirtualRegister(index))
        require(result is None, "nl.fori_loop", "body_fun", "it must return None", result)
