"""The memory behind a tensor: where it lies and what it holds."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import DType


class Buffer(Enum):
    """Where a tensor lives."""

    hbm = "hbm"
    shared_hbm = "shared_hbm"
    sbuf = "sbuf"
    psum = "psum"

    @property
    def is_on_chip(self) -> bool:
        """True for SBUF and PSUM, whose first dimension is the partition."""
        return self in {Buffer.sbuf, Buffer.psum}


class Storage:
    """The memory behind a tensor and its views.

    Attributes:
        data: the numbers, contiguous.
        from_matmul: PSUM only: True where a matmul has written, so that another may add.
        is_dirty: whether anything was written since it was made.
    """

    def __init__(self, data: NDArray[Any], dtype: DType, buffer: Buffer) -> None:
        self.data, self.dtype, self.buffer = data, dtype, buffer
        self.shape = data.shape
        self.is_dirty = False
        self.from_matmul = np.zeros(data.shape, dtype=bool) if buffer is Buffer.psum else None
