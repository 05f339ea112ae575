"""The Vector Engine: elementwise work, reductions, and the way out of PSUM."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compute import apply_operator, as_float, check_not_both_in_psum, check_operator, write
from .dtypes import int32, uint8, uint32
from .language import Operator
from .limits import require
from .operand_checks import check_operands, check_same_elements, check_scalar_operand
from .storage import Buffer
from .tensor import NkiTensor

Scalar = float | NkiTensor


def tensor_copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy on chip; the way out of PSUM."""
    check_operands("nisa.tensor_copy", dst=dst, src=src)
    check_same_elements("nisa.tensor_copy", dst, src=src)
    write("vector", "tensor_copy", dst, src.data)


def memset(dst: NkiTensor, value: float) -> None:
    """Fill with a constant; an integer tensor takes an int."""
    check_operands("nisa.memset", dst=dst)
    require(
        dst.dtype.is_float or isinstance(value, int), "nisa.memset", "value",
        f"a tensor of {dst.dtype} takes an int", repr(value),
    )
    storage = np.float64 if dst.dtype.is_float else np.int64
    filling: NDArray[Any] = np.full(dst.shape, value, dtype=storage)
    write("vector", "memset", dst, filling)


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
    check_not_both_in_psum(operation, src=src, predicate=predicate)
    chosen = predicate.data.reshape(dst.shape) != 0
    write(
        "vector", "tensor_copy_predicated", dst,
        np.where(chosen, src.data.reshape(dst.shape), dst.data),
    )


def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator
) -> None:
    """Compute dst = data1 op data2. On int32 or uint32 in SBUF alone, exact and on GpSimd."""
    operation = "nisa.tensor_tensor"
    check_operands(operation, dst=dst, data1=data1, data2=data2)
    check_same_elements(operation, dst, data1=data1, data2=data2)
    check_not_both_in_psum(operation, data1=data1, data2=data2)
    tensors = (dst, data1, data2)
    exact = all(t.dtype in {int32, uint32} and t.buffer is Buffer.sbuf for t in tensors)
    if exact:
        first, second = (t.data.astype(np.int64).reshape(dst.shape) for t in (data1, data2))
    else:
        first, second = (as_float(t).reshape(dst.shape) for t in (data1, data2))
    check_operator(operation, "op", op, data1)
    write("gpsimd" if exact else "vector", "tensor_tensor", dst, apply_operator(op, first, second))


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
    values = data.data.reshape(dst.shape) if op0.is_bitwise else as_float(data).reshape(dst.shape)
    for op_name, op, operand_name, operand in steps:
        check_operator(operation, op_name, op, data)
        scalar = check_scalar_operand(operation, operand_name, operand, dst)
        values = apply_operator(op, values, scalar)
    write("vector", "tensor_scalar", dst, values)


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
    check_not_both_in_psum(operation, data=data, operand1=operand1)
    for op_name, op in (("op0", op0), ("op1", op1)):
        require(not op.is_bitwise, operation, op_name, "it must be arithmetic", op)
    scalar = check_scalar_operand(operation, "operand0", operand0, dst)
    values = apply_operator(op0, as_float(data).reshape(dst.shape), scalar)
    values = apply_operator(op1, values, as_float(operand1).reshape(dst.shape))
    write("vector", "scalar_tensor_tensor", dst, values)


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
        values = op.reduce(as_float(data), axis=1, keepdims=True)
    write("vector", "tensor_reduce", dst, -values if negate else values)


def reciprocal(dst: NkiTensor, data: NkiTensor) -> None:
    """Compute dst = 1 / data."""
    check_operands("nisa.reciprocal", dst=dst, data=data)
    check_same_elements("nisa.reciprocal", dst, data=data)
    with np.errstate(all="ignore"):
        values = np.float32(1) / as_float(data).reshape(dst.shape)
    write("vector", "reciprocal", dst, values)
