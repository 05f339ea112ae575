"""The Scalar and GpSimd Engines, and the registers of the sequencers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compute import as_float, write
from .dtypes import cast, int32, uint32
from .language import Operator, add
from .limits import IOTA_DIMENSIONS, REGISTERS, require, require_at_most
from .neuron_core import current_machine
from .operand_checks import check_operands, check_same_elements, check_scalar_operand
from .storage import Buffer
from .tensor import NkiTensor, VirtualRegister


class reduce_cmd(Enum):  # noqa: N801  (nki's name)
    """What an instruction does with its reduce registers."""

    idle = "idle"
    reset_reduce = "reset_reduce"


def activation(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    bias: NkiTensor | None = None,
    scale: float = 1.0,
    reduce_op: Operator | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
) -> None:
    """Compute dst = op(data * scale + bias); reduce_res [P, 1] gets the sum, not yet rounded."""
    operation = "nisa.activation"
    check_operands(operation, dst=dst, data=data)
    check_same_elements(operation, dst, data=data)
    shift = 0.0 if bias is None else check_scalar_operand(operation, "bias", bias, dst)
    with np.errstate(all="ignore"):
        shifted = as_float(data).reshape(dst.shape) * np.float32(scale) + shift
        values = op.function(shifted.astype(np.float32))
    if reduce_op is not None or reduce_res is not None:
        _reduce_activation(operation, values, reduce_op, reduce_res, reduce_cmd.value)
    write("scalar", "activation", dst, values)


def _reduce_activation(
    operation: str,
    values: NDArray[Any],
    reduce_op: Operator | None,
    reduce_res: NkiTensor | None,
    command: str,
) -> None:
    require(reduce_op is add, operation, "reduce_op", "it must be nl.add", reduce_op)
    require(
        command == "reset_reduce", operation, "reduce_cmd",
        "the emulator has reset_reduce only", command,
    )
    partitions = values.shape[0]
    assert reduce_res is not None
    check_operands(operation, reduce_res=reduce_res)
    require(
        reduce_res.shape == (partitions, 1), operation, "reduce_res",
        f"it must be ({partitions}, 1)", reduce_res.shape,
    )
    sums = values.reshape(partitions, -1).sum(axis=1, keepdims=True, dtype=np.float32)
    reduce_res.data[...] = cast(sums, reduce_res.dtype)


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
) -> None:
    """Compute dst = offset + partition * channel_multiplier + sum of the pattern's step * index."""
    operation = "nisa.iota"
    check_operands(operation, dst=dst)
    require(
        dst.buffer is Buffer.sbuf, operation, "dst", "GpSimd cannot reach PSUM", dst.buffer.value
    )
    require_at_most(operation, "pattern", "pairs", len(pattern), IOTA_DIMENSIONS)
    elements = math.prod(count for _, count in pattern)
    require(
        elements == dst.size // dst.shape[0], operation, "pattern",
        f"its counts must give {dst.size // dst.shape[0]} elements a partition", elements,
    )
    values: NDArray[Any] = np.zeros((1,) * len(pattern), dtype=np.int64)
    for axis, (step, count) in enumerate(pattern):
        shape = [1] * len(pattern)
        shape[axis] = count
        values = values + step * np.arange(count).reshape(shape)
    partitions = np.arange(dst.shape[0])[:, None]
    values = offset + partitions * channel_multiplier + values.reshape(1, -1)
    values = values.reshape(dst.shape)
    write("gpsimd", "iota", dst, values.astype(np.float32) if dst.dtype.is_float else values)


def register_alloc(x: int | None = None) -> VirtualRegister:
    """Reserve a register."""
    machine = current_machine("nisa.register_alloc")
    machine.registers += 1
    require_at_most("nisa.register_alloc", "x", "registers", machine.registers, REGISTERS)
    return VirtualRegister(x or 0)


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """Load a register from a tensor of one number."""
    operation = "nisa.register_load"
    require(src.size == 1, operation, "src", "it must have one element", src.size)
    require(
        src.dtype in {int32, uint32}, operation, "src", "it must be int32 or uint32", src.dtype
    )
    dst._value = int(src.data.reshape(-1)[0])
    current_machine(operation).counts.instructions["sync", "register_load"] += 1
