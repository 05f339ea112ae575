"""Reading operands and writing results, as every engine does it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import cast
from .language import Operator
from .limits import require
from .neuron_core import current_machine
from .storage import Buffer
from .tensor import NkiTensor


def flat(tensor: NkiTensor) -> NDArray[Any]:
    """Return the numbers as [partitions, elements]."""
    return tensor.data.reshape(tensor.shape[0], -1)


def as_float(tensor: NkiTensor) -> NDArray[np.float32]:
    """Return the numbers as the arithmetic units see them."""
    return tensor.data.astype(np.float32, copy=False)


def apply_operator(op: Operator, first: NDArray[Any], second: Any) -> NDArray[Any]:
    """Apply an operator as the hardware does: comparisons give 1.0 and 0.0, nothing warns."""
    with np.errstate(all="ignore"):
        result = op.function(first, second)
    return result.astype(np.float32) if result.dtype == bool else result


def check_operator(operation: str, operand: str, op: Operator, data: NkiTensor) -> None:
    """Check that a bitwise operator gets integers."""
    require(
        not (op.is_bitwise and data.dtype.is_float), operation, operand,
        f"{op} needs integers", data.dtype,
    )


def check_not_both_in_psum(operation: str, **operands: NkiTensor) -> None:
    """Check that the engine has one operand, at most, to read from PSUM."""
    in_psum = [tensor.buffer is Buffer.psum for tensor in operands.values()]
    require(
        not all(in_psum), operation, " and ".join(operands), "not both may be in PSUM", "both"
    )


def write(engine: str, operation: str, dst: NkiTensor, values: NDArray[Any]) -> None:
    """Cast and store a result, and count the instruction on its engine."""
    dst.data[...] = cast(values.reshape(dst.shape), dst.dtype)
    dst.storage.is_dirty = True
    if dst.from_matmul is not None:
        dst.from_matmul[...] = False
    current_machine(operation).counts.instructions[engine, operation] += 1
