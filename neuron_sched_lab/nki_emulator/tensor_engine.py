"""The Tensor Engine: matmul, and the transposes, of which the Vector Engine does small ones."""

from __future__ import annotations

import numpy as np

from .compute import flat, write
from .dtypes import bfloat16, float32
from .limits import (
    MATMUL_MOVING_COLUMNS,
    MATMUL_STATIONARY_COLUMNS,
    NUM_PARTITIONS,
    VECTOR_TRANSPOSE,
    require,
    require_at_most,
)
from .neuron_core import current_machine
from .operand_checks import check_matmul_destination, check_operands
from .storage import Buffer
from .tensor import NkiTensor


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
    left, right = flat(stationary), flat(moving)
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
        flat(dst).shape == shape, operation, "dst", f"it must be [M, N] = {shape}", dst.shape
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
    values = flat(data)
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
        flat(dst).shape == transposed.shape, operation, "dst",
        f"it must be {transposed.shape}", dst.shape,
    )
    write(engine, "nc_transpose", dst, transposed)
