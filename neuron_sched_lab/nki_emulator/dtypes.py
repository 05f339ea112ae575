"""The number formats of the kernels, and the casts between them.

NumPy has no bfloat16. A bfloat16 tensor is kept as float32 numbers that are rounded to bfloat16
whenever they are written, which gives the same numbers; its bytes are counted as two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FRESH_INTEGER = 4
"""What fresh integer memory holds, as in nki.simulate; fresh float memory is NaN."""


@dataclass(frozen=True)
class DType:
    """A number format.

    Attributes:
        name: as in nki.language.
        itemsize: bytes on the device.
        storage: NumPy's format for it here.
    """

    name: str
    itemsize: int
    storage: type[np.generic]

    @property
    def is_float(self) -> bool:
        """True for floating point."""
        return issubclass(self.storage, np.floating)

    def __repr__(self) -> str:
        return self.name


float32 = DType("float32", 4, np.float32)
bfloat16 = DType("bfloat16", 2, np.float32)
int32 = DType("int32", 4, np.int32)
uint32 = DType("uint32", 4, np.uint32)
uint8 = DType("uint8", 1, np.uint8)

DTYPES = {dtype.name: dtype for dtype in (float32, bfloat16, int32, uint32, uint8)}


def fresh(shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    """Return memory that nobody has written to."""
    return np.full(shape, np.nan if dtype.is_float else FRESH_INTEGER, dtype=dtype.storage)


def cast(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Cast as the engines do: float32 in between; to integers round half to even and saturate.

    Integers that stay integers are copied bit by bit.
    """
    if not dtype.is_float and not np.issubdtype(values.dtype, np.floating):
        return values.astype(dtype.storage)
    values = values.astype(np.float32, copy=False)
    if dtype is bfloat16:
        return round_to_bfloat16(values)
    if dtype.is_float:
        return values
    info = np.iinfo(dtype.storage)
    rounded = np.nan_to_num(np.rint(values.astype(np.float64)), nan=0.0)
    return np.clip(rounded, info.min, info.max).astype(dtype.storage)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest bfloat16, ties to even, and return it as float32."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), values, rounded)
