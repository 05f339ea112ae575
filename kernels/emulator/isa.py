"""Stands in for nki.isa: the instructions that the kernels use, with every limit enforced.

Destination first, as in nki. Arithmetic is done in float32 and cast to the destination's format.
Each instruction checks its operands, computes, and counts itself on its engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import (
    check_matmul_destination,
    check_operands,
    check_same_elements,
    check_scalar_operand,
)
from .counts import Dma
from .dtypes import bfloat16, cast, float32, int32, uint8, uint32
from .language import Operator, add
from .limits import (
    IOTA_DIMENSIONS,
    MATMUL_MOVING_COLUMNS,
    MATMUL_STATIONARY_COLUMNS,
    NUM_PARTITIONS,
    REGISTERS,
    VECTOR_TRANSPOSE,
    NkiValidationError,
    require,
    require_at_most,
)
from .machine import current_machine
from .tensor import Buffer, IndirectRows, NkiTensor, VirtualRegister

__all__ = ["NkiValidationError", "VirtualRegister"]

Scalar = float | NkiTensor


class oob_mode(Enum):  # noqa: N801  (nki's name)
    """What a DMA does with an index out of bounds."""

    error = "error"
    skip = "skip"


class reduce_cmd(Enum):  # noqa: N801  (nki's name)
    """What an instruction does with its reduce registers."""

    idle = "idle"
    reset_reduce = "reset_reduce"


def __getattr__(name: str) -> Any:
    why = "is not in the emulator, which has what the kernels use"
    if name in {"exponential", "activate2"}:
        why = "exists on Trn3 only"
    raise AttributeError(f"nisa.{name} {why}")


# Moving data.


def dma_copy(
    dst: NkiTensor | IndirectRows,
    src: NkiTensor | IndirectRows,
    oob_mode: oob_mode = oob_mode.error,
) -> None:
    """Copy between HBM and SBUF; rows may be gathered or scattered by `ap(vector_offset=...)`."""
    operation = "nisa.dma_copy"
    for operand, tensor in (("dst", dst), ("src", src)):
        require(
            tensor.buffer is not Buffer.psum, operation, operand, "a DMA cannot reach PSUM", "psum"
        )
    require(
        dst.size == src.size, operation, "dst", f"it must have as many elements as src, {src.size}",
        dst.size,
    )
    skipped = 0
    if isinstance(src, IndirectRows):
        assert isinstance(dst, NkiTensor)
        skipped = _gather(dst, src, oob_mode)
    elif isinstance(dst, IndirectRows):
        skipped = _scatter(dst, src, oob_mode)
    else:
        dst.data[...] = cast(src.data.reshape(dst.shape), dst.dtype)
    storage = dst.tensor.storage if isinstance(dst, IndirectRows) else dst.storage
    storage.is_dirty = True
    rows = len(dst.rows) if isinstance(dst, IndirectRows) else 1
    rows = len(src.rows) if isinstance(src, IndirectRows) else rows
    itemsize = max(dst.dtype.itemsize, src.dtype.itemsize)
    moved = dst.size // rows * (rows - skipped) * itemsize
    route = f"{_place(src)} to {_place(dst)}"
    counts = current_machine(operation).counts
    counts.dmas.append(Dma(route, moved, skipped))
    counts.instructions["dma", "dma_copy"] += 1


def _place(tensor: NkiTensor | IndirectRows) -> str:
    return "sbuf" if tensor.buffer is Buffer.sbuf else "hbm"


def _gather(dst: NkiTensor, src: IndirectRows, mode: oob_mode) -> int:
    require(
        dst.buffer is Buffer.sbuf, "nisa.dma_copy", "dst", "a gather must go to SBUF",
        dst.buffer.value,
    )
    kept = _rows_in_bounds(src, "src", mode)
    rows = src.tensor.data.reshape(src.tensor.shape[0], -1)[src.rows[kept], : src.row_elements]
    into = dst.data.reshape(len(src.rows), -1)
    into[kept] = cast(rows, dst.dtype)
    if not np.shares_memory(into, dst.data):
        dst.data[...] = into.reshape(dst.shape)
    return int((~kept).sum())


def _scatter(dst: IndirectRows, src: NkiTensor | IndirectRows, mode: oob_mode) -> int:
    require(
        isinstance(src, NkiTensor) and src.buffer is Buffer.sbuf, "nisa.dma_copy", "src",
        "a scatter must come from SBUF", src.buffer.value,
    )
    assert isinstance(src, NkiTensor)
    kept = _rows_in_bounds(dst, "dst", mode)
    targets = dst.rows[kept]
    require(
        len(np.unique(targets)) == len(targets), "nisa.dma_copy", "dst",
        "the rows of a scatter must differ", "a row twice",
    )
    values = src.data.reshape(len(dst.rows), -1)[kept]
    base = dst.tensor.data.reshape(dst.tensor.shape[0], -1)
    base[targets, : dst.row_elements] = cast(values, dst.dtype)
    return int((~kept).sum())


def _rows_in_bounds(rows: IndirectRows, operand: str, mode: oob_mode) -> NDArray[np.bool_]:
    if mode is oob_mode.error and not rows.in_bounds.all():
        first = rows.rows[~rows.in_bounds][0]
        limit = f"an index must be below {rows.tensor.shape[0]} (oob_mode.error)"
        raise NkiValidationError("nisa.dma_copy", operand, limit, f"{first}")
    return rows.in_bounds


def tensor_copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy on chip; the way out of PSUM."""
    check_operands("nisa.tensor_copy", dst=dst, src=src)
    check_same_elements("nisa.tensor_copy", dst, src=src)
    _write("vector", "tensor_copy", dst, src.data)


def memset(dst: NkiTensor, value: float) -> None:
    """Fill with a constant; an integer tensor takes an int."""
    check_operands("nisa.memset", dst=dst)
    require(
        dst.dtype.is_float or isinstance(value, int), "nisa.memset", "value",
        f"a tensor of {dst.dtype} takes an int", repr(value),
    )
    filling = np.full(dst.shape, value, dtype=np.float64 if dst.dtype.is_float else np.int64)
    _write("vector", "memset", dst, filling)


def tensor_copy_predicated(
    dst: NkiTensor, src: NkiTensor, predicate: NkiTensor
) -> None:
    """Copy where the predicate is not 0; leave dst alone elsewhere."""
    operation = "nisa.tensor_copy_predicated"
    check_operands(operation, dst=dst, src=src, predicate=predicate)
    check_same_elements(operation, dst, src=src, predicate=predicate)
    require(
        predicate.dtype in {uint8, uint32}, operation, "predicate", "it must be uint8 or uint32",
        predicate.dtype,
    )
    require(src.dtype is dst.dtype, operation, "src", f"it must be {dst.dtype}", src.dtype)
    _not_both_in_psum(operation, src=src, predicate=predicate)
    chosen = predicate.data.reshape(dst.shape) != 0
    _write(
        "vector", "tensor_copy_predicated", dst,
        np.where(chosen, src.data.reshape(dst.shape), dst.data),
    )


# Tensor Engine.


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    accumulate: bool | None = None,
) -> None:
    """Compute dst [M, N] (+)= stationary [K, M].T @ moving [K, N].

    accumulate: None overwrites at the first matmul into a place and adds from then on; False
    overwrites; True adds.
    """
    operation = "nisa.nc_matmul"
    check_operands(operation, dst=dst, stationary=stationary, moving=moving)
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        require(
            tensor.buffer is Buffer.sbuf, operation, operand, "it must be in SBUF",
            tensor.buffer.value,
        )
        require(
            tensor.dtype in {float32, bfloat16}, operation, operand,
            "it must be float32 or bfloat16", tensor.dtype,
        )
    require(
        stationary.dtype is moving.dtype, operation, "moving",
        f"float32 pairs with float32 only; stationary is {stationary.dtype}", moving.dtype,
    )
    left, right = _flat(stationary), _flat(moving)
    require(
        len(left) == len(right), operation, "moving",
        f"it must have stationary's K = {len(left)} partitions", len(right),
    )
    require_at_most(
        operation, "stationary", "columns (M)", left.shape[1], MATMUL_STATIONARY_COLUMNS
    )
    require_at_most(operation, "moving", "columns (N)", right.shape[1], MATMUL_MOVING_COLUMNS)
    shape = (left.shape[1], right.shape[1])
    require(
        _flat(dst).shape == shape, operation, "dst", f"it must be [M, N] = {shape}", dst.shape
    )
    check_matmul_destination(operation, dst)
    require(dst.dtype is float32, operation, "dst", "on Trn2 it must be float32", dst.dtype)
    with np.errstate(all="ignore"):
        product = (left.T @ right).reshape(dst.shape)
    assert dst.from_matmul is not None
    if accumulate:
        require(
            bool(dst.from_matmul.all()), operation, "accumulate",
            "True needs a matmul that has written there before", "memory that none has written",
        )
    adds = dst.from_matmul.copy() if accumulate is None else np.full(dst.shape, accumulate)
    dst.data[...] = np.where(adds, dst.data + product, product)
    dst.from_matmul[...] = True
    counts = current_machine(operation).counts
    counts.instructions["tensor", "nc_matmul"] += 1
    counts.matmul_flops += 2 * len(left) * shape[0] * shape[1]


def nc_transpose(dst: NkiTensor, data: NkiTensor) -> None:
    """Compute dst [F, P] = data [P, F].T: into PSUM by the Tensor Engine, else by the Vector."""
    operation = "nisa.nc_transpose"
    check_operands(operation, dst=dst, data=data)
    require(dst.dtype is data.dtype, operation, "dst", f"it must be {data.dtype}", dst.dtype)
    values = _flat(data)
    limit, engine = VECTOR_TRANSPOSE, "vector"
    if dst.buffer is Buffer.psum:
        limit, engine = NUM_PARTITIONS, "tensor"
        require(
            data.buffer is Buffer.sbuf, operation, "data",
            "the Tensor Engine reads SBUF", data.buffer.value,
        )
        check_matmul_destination(operation, dst)
    require_at_most(operation, "data", f"partitions ({engine} engine)", values.shape[0], limit)
    require_at_most(operation, "data", f"columns ({engine} engine)", values.shape[1], limit)
    transposed = values.T
    require(
        _flat(dst).shape == transposed.shape, operation, "dst",
        f"it must be {transposed.shape}", dst.shape,
    )
    _write(engine, "nc_transpose", dst, transposed)


# Vector Engine.


def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator
) -> None:
    """Compute dst = data1 op data2. On int32 or uint32 in SBUF alone, exact and on GpSimd."""
    operation = "nisa.tensor_tensor"
    check_operands(operation, dst=dst, data1=data1, data2=data2)
    check_same_elements(operation, dst, data1=data1, data2=data2)
    _not_both_in_psum(operation, data1=data1, data2=data2)
    tensors = (dst, data1, data2)
    exact = all(t.dtype in {int32, uint32} and t.buffer is Buffer.sbuf for t in tensors)
    if exact:
        first, second = (t.data.astype(np.int64).reshape(dst.shape) for t in (data1, data2))
    else:
        first, second = (_float(t).reshape(dst.shape) for t in (data1, data2))
    _check_operator(operation, "op", op, data1)
    _write("gpsimd" if exact else "vector", "tensor_tensor", dst, _apply(op, first, second))


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: Scalar,
    op1: Operator | None = None,
    operand1: Scalar | None = None,
) -> None:
    """Compute dst = (data op0 operand0) op1 operand1.

    An operand is a number, or a tensor [P, 1] with one for each partition.
    """
    operation = "nisa.tensor_scalar"
    check_operands(operation, dst=dst, data=data)
    check_same_elements(operation, dst, data=data)
    steps = [("op0", op0, "operand0", operand0)]
    if op1 is not None:
        assert operand1 is not None
        steps.append(("op1", op1, "operand1", operand1))
        require(
            op0.is_bitwise == op1.is_bitwise, operation, "op1",
            f"both must be bitwise or both arithmetic; op0 is {op0}", op1,
        )
    values = data.data.reshape(dst.shape) if op0.is_bitwise else _float(data).reshape(dst.shape)
    for op_name, op, operand_name, operand in steps:
        _check_operator(operation, op_name, op, data)
        scalar = check_scalar_operand(operation, operand_name, operand, dst)
        values = _apply(op, values, scalar)
    _write("vector", "tensor_scalar", dst, values)


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: Scalar,
    op1: Operator,
    operand1: NkiTensor,
) -> None:
    """Compute dst = (data op0 operand0) op1 operand1, where operand1 is a tensor like data."""
    operation = "nisa.scalar_tensor_tensor"
    check_operands(operation, dst=dst, data=data, operand1=operand1)
    check_same_elements(operation, dst, data=data, operand1=operand1)
    _not_both_in_psum(operation, data=data, operand1=operand1)
    for op_name, op in (("op0", op0), ("op1", op1)):
        require(not op.is_bitwise, operation, op_name, "it must be arithmetic", op)
    scalar = check_scalar_operand(operation, "operand0", operand0, dst)
    values = _apply(op0, _float(data).reshape(dst.shape), scalar)
    values = _apply(op1, values, _float(operand1).reshape(dst.shape))
    _write("vector", "scalar_tensor_tensor", dst, values)


def tensor_reduce(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    axis: int,
    negate: bool = False,
) -> None:
    """Compute dst [P, 1] = op over the last dimension of data [P, F], times -1 if negate."""
    operation = "nisa.tensor_reduce"
    check_operands(operation, dst=dst, data=data)
    require(
        data.ndim == 2 and axis == 1, operation, "axis",  # noqa: PLR2004
        "the emulator reduces axis 1 of a 2-dimensional tensor", f"{axis} of {data.shape}",
    )
    require(
        op.reduce is not None, operation, "op", "it must be add, maximum or minimum", op
    )
    require(
        dst.shape == (data.shape[0], 1), operation, "dst", f"it must be ({data.shape[0]}, 1)",
        dst.shape,
    )
    assert op.reduce is not None
    with np.errstate(all="ignore"):
        values = op.reduce(_float(data), axis=1, keepdims=True)
    _write("vector", "tensor_reduce", dst, -values if negate else values)


def reciprocal(dst: NkiTensor, data: NkiTensor) -> None:
    """Compute dst = 1 / data."""
    check_operands("nisa.reciprocal", dst=dst, data=data)
    check_same_elements("nisa.reciprocal", dst, data=data)
    with np.errstate(all="ignore"):
        values = np.float32(1) / _float(data).reshape(dst.shape)
    _write("vector", "reciprocal", dst, values)


# Scalar Engine.


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
        shifted = _float(data).reshape(dst.shape) * np.float32(scale) + shift
        values = op.function(shifted.astype(np.float32))
    if reduce_op is not None or reduce_res is not None:
        _reduce_activation(operation, values, reduce_op, reduce_res, reduce_cmd.value)
    _write("scalar", "activation", dst, values)


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


# GpSimd Engine.


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
) -> None:
    """Compute dst = offset + partition * channel_multiplier + sum of step * index of the pattern."""
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
    values = np.zeros((1,) * len(pattern), dtype=np.int64)
    for axis, (step, count) in enumerate(pattern):
        shape = [1] * len(pattern)
        shape[axis] = count
        values = values + step * np.arange(count).reshape(shape)
    partitions = np.arange(dst.shape[0])[:, None]
    values = offset + partitions * channel_multiplier + values.reshape(1, -1)
    values = values.reshape(dst.shape)
    _write("gpsimd", "iota", dst, values.astype(np.float32) if dst.dtype.is_float else values)


# Registers.


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


# What instructions share.


def _flat(tensor: NkiTensor) -> NDArray[Any]:
    return tensor.data.reshape(tensor.shape[0], -1)


def _float(tensor: NkiTensor) -> NDArray[np.float32]:
    return tensor.data.astype(np.float32, copy=False)


def _apply(op: Operator, first: NDArray[Any], second: Any) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        result = op.function(first, second)
    return result.astype(np.float32) if result.dtype == bool else result


def _check_operator(operation: str, operand: str, op: Operator, data: NkiTensor) -> None:
    require(
        not (op.is_bitwise and data.dtype.is_float), operation, operand,
        f"{op} needs integers", data.dtype,
    )


def _not_both_in_psum(operation: str, **operands: NkiTensor) -> None:
    in_psum = [tensor.buffer is Buffer.psum for tensor in operands.values()]
    require(
        not all(in_psum), operation, " and ".join(operands), "not both may be in PSUM", "both"
    )


def _write(engine: str, operation: str, dst: NkiTensor, values: NDArray[Any]) -> None:
    dst.data[...] = cast(values.reshape(dst.shape), dst.dtype)
    dst.storage.is_dirty = True
    if dst.from_matmul is not None:
        dst.from_matmul[...] = False
    current_machine(operation).counts.instructions[engine, operation] += 1
