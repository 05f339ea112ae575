"""The DMA engines: copies, gathers and scatters between HBM and SBUF."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .counts import Dma
from .dtypes import cast
from .limits import NkiValidationError, require
from .neuron_core import current_machine
from .storage import Buffer
from .tensor import IndirectRows, NkiTensor


class oob_mode(Enum):  # noqa: N801  (nki's name)
    """What a DMA does with an index out of bounds."""

    error = "error"
    skip = "skip"


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
