"""Checks that instructions share."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import float32
from .limits import (
    FREE_DIMENSIONS,
    PSUM_BANK_BYTES,
    require,
    require_at_most,
    require_partition_start,
)
from .storage import Buffer
from .tensor import NkiTensor


def check_operands(operation: str, **operands: Any) -> None:
    """Check what holds for every operand of a compute engine: on chip, and within its reach."""
    for name, tensor in operands.items():
        require(
            isinstance(tensor, NkiTensor), operation, name, "it must be a tensor",
            type(tensor).__name__,
        )
        require(
            tensor.buffer.is_on_chip, operation, name, "it must be in SBUF or PSUM",
            tensor.buffer.value,
        )
        require_at_most(operation, name, "free dimensions", tensor.ndim - 1, FREE_DIMENSIONS)
        require_partition_start(operation, name, tensor.partition_start, tensor.shape[0])


def check_same_elements(operation: str, dst: NkiTensor, **operands: NkiTensor) -> None:
    """Check that operands have dst's partitions and as many elements in each."""
    for name, tensor in operands.items():
        require(
            tensor.shape[0] == dst.shape[0] and tensor.size == dst.size, operation, name,
            f"it must have dst's {dst.shape[0]} partitions of {dst.size // dst.shape[0]} elements",
            f"{tensor.shape[0]} of {tensor.size // tensor.shape[0]}",
        )


def check_scalar_operand(operation: str, name: str, operand: Any, dst: NkiTensor) -> Any:
    """Return a number, or one number for each partition, ready for NumPy to broadcast."""
    if not isinstance(operand, NkiTensor):
        return np.float32(operand) if isinstance(operand, float) else operand
    check_operands(operation, **{name: operand})
    partitions = dst.shape[0]
    require(
        operand.shape == (partitions, 1), operation, name,
        f"it must be a number or ({partitions}, 1)", operand.shape,
    )
    require(operand.dtype is float32, operation, name, "it must be float32", operand.dtype)
    return operand.data.reshape(partitions, *(1,) * (dst.ndim - 1))


def check_matmul_destination(operation: str, dst: NkiTensor) -> None:
    """Check that what the Tensor Engine writes lies in PSUM, within one bank."""
    require(
        dst.buffer is Buffer.psum, operation, "dst", "it must be in PSUM", dst.buffer.value
    )
    base, view = dst.storage.data, dst.data
    bytes_per_row = base.strides[0]
    start = (view.ctypes.data - base.ctypes.data) % bytes_per_row
    extent = sum(
        stride * (count - 1)
        for stride, count in zip(view.strides[1:], view.shape[1:], strict=True)
    )
    scale = dst.dtype.itemsize / base.itemsize
    first, last = int(start * scale), int((start + extent) * scale) + dst.dtype.itemsize - 1
    require(
        first // PSUM_BANK_BYTES == last // PSUM_BANK_BYTES, operation, "dst",
        f"it must lie within one PSUM bank of {PSUM_BANK_BYTES} bytes", f"bytes {first}..{last}",
    )
