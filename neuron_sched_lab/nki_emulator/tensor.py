"""Tensors in HBM, SBUF and PSUM, and the views of them that the kernels use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from .dtypes import DType, fresh, int32, uint32
from .limits import NUM_PARTITIONS, PSUM_BANK_BYTES, NkiValidationError, require, require_at_most
from .neuron_core import Machine
from .storage import Buffer, Storage

Index = int | slice | EllipsisType


class VirtualRegister:
    """A number that only the device knows: no `if`, `int()` or `range()` of it."""

    def __init__(self, value: int = 0) -> None:
        self._value = value

    def _refuse(self, *_: object) -> Any:
        raise TypeError(
            "VirtualRegister: its value is not known when the kernel is traced; use nl.fori_loop "
            "or scalar_offset"
        )

    __bool__ = __int__ = __index__ = __float__ = _refuse
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __mul__ = _refuse
    __hash__ = object.__hash__


class IndirectRows:
    """Rows of an HBM tensor, chosen by an index for each partition; made by NkiTensor.ap."""

    def __init__(self, tensor: NkiTensor, index: NkiTensor, row_pattern: Sequence[Any]) -> None:
        self.tensor, self.dtype, self.buffer = tensor, tensor.dtype, tensor.buffer
        # -1 as uint32 is the largest number of all: out of bounds, whatever the tensor.
        rows = index.data.reshape(-1).view(np.uint32).astype(np.int64)
        self.in_bounds = rows < tensor.shape[0]
        self.rows = rows
        self.row_elements = math.prod(count for _, count in row_pattern)
        self.shape = (len(rows), *(count for _, count in row_pattern))
        self.size = math.prod(self.shape)


class NkiTensor:
    """A tensor or a view of one. On chip, dimension 0 is the partition and always stays."""

    def __init__(
        self,
        storage: Storage,
        data: NDArray[Any],
        *,
        dtype: DType | None = None,
        partition_start: int = 0,
        from_matmul: NDArray[np.bool_] | None = None,
    ) -> None:
        self.storage, self.data = storage, data
        self.dtype = dtype or storage.dtype
        self.partition_start = partition_start
        self.from_matmul = from_matmul

    @property
    def buffer(self) -> Buffer:
        """Where it lives."""
        return self.storage.buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self.data.shape

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.data.size

    def __getitem__(self, index: Index | tuple[Index, ...]) -> NkiTensor:
        """Slice it; unlike NumPy, a bound outside the tensor is an error."""
        items = self._expand(index if isinstance(index, tuple) else (index,))
        if self.buffer.is_on_chip and isinstance(items[0], int):
            items = (slice(items[0], items[0] + 1), *items[1:])
        start = self.partition_start
        if self.buffer.is_on_chip:
            assert isinstance(items[0], slice)
            require(
                items[0].step in {None, 1}, "slice", self._name(),
                "the step over partitions must be 1", f"step {items[0].step}",
            )
            start += items[0].start or 0
        view = None if self.from_matmul is None else self.from_matmul[items]
        data = self.data[items]
        data = data.reshape(1) if data.ndim == 0 else data
        return NkiTensor(
            self.storage, data, dtype=self.dtype, partition_start=start, from_matmul=view
        )

    def _expand(self, index: tuple[Index, ...]) -> tuple[int | slice, ...]:
        if Ellipsis in index:
            at = index.index(Ellipsis)
            missing = self.ndim - len(index) + 1
            index = (*index[:at], *(slice(None),) * missing, *index[at + 1 :])
        index = (*index, *(slice(None),) * (self.ndim - len(index)))
        require(
            len(index) == self.ndim, "slice", self._name(), f"it has {self.ndim} dimensions",
            f"{len(index)} indices",
        )
        for item, size in zip(index, self.shape, strict=True):
            self._check_bounds(item, size)
        return index  # type: ignore[return-value]

    def _check_bounds(self, item: Any, size: int) -> None:
        bounds = (item.start, item.stop) if isinstance(item, slice) else (item,)
        limit = f"index must be an int or a slice within 0..{size}"
        for bound in bounds:
            inside = bound is None or (isinstance(bound, int) and -size <= bound <= size)
            require(inside, "slice", self._name(), limit, bound)
        require(isinstance(item, slice) or item < size, "slice", self._name(), limit, item)

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """View it with other dimensions; on chip the partition dimension must stay."""
        require(
            math.prod(shape) == self.size, "reshape", self._name(),
            f"it has {self.size} numbers", f"shape {shape}",
        )
        if self.buffer.is_on_chip:
            require(
                shape[0] == self.shape[0], "reshape", self._name(),
                f"dimension 0 must stay {self.shape[0]}", f"shape {shape}",
            )
        try:
            data = self.data.reshape(shape, copy=False)
        except ValueError as error:
            raise NkiValidationError(
                "reshape", self._name(), "no view of it has this shape", shape
            ) from error
        written = None if self.from_matmul is None else self.from_matmul.reshape(shape)
        return NkiTensor(
            self.storage, data, dtype=self.dtype, partition_start=self.partition_start,
            from_matmul=written,
        )

    def view(self, dtype: DType) -> NkiTensor:
        """Read the same bits as another format; here between int32 and uint32 only."""
        require(
            all(d in {int32, uint32} for d in (self.dtype, dtype)), "view", self._name(),
            "the emulator views int32 as uint32 and back", f"{self.dtype} as {dtype}",
        )
        return NkiTensor(
            self.storage, self.data.view(dtype.storage), dtype=dtype,
            partition_start=self.partition_start,
        )

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int = 0,
        scalar_offset: VirtualRegister | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
    ) -> NkiTensor | IndirectRows:
        """Address an HBM tensor by [step, count] pairs in elements, outermost first.

        scalar_offset adds its value times the size of one step of `indirect_dim`. vector_offset
        takes row `vector_offset[p]` for partition p; the first pair's step is then not used.
        """
        self._check_pattern(pattern, scalar_offset, vector_offset)
        if vector_offset is not None:
            self._check_vector_offset(pattern, offset, vector_offset, indirect_dim)
            return IndirectRows(self, vector_offset, pattern[1:])
        if scalar_offset is not None:
            offset += scalar_offset._value * math.prod(self.shape[indirect_dim + 1 :])
        last = offset + sum(step * (count - 1) for step, count in pattern)
        limit = f"elements must be within 0..{self.size - 1}"
        require(offset >= 0 and last < self.size, "ap", self._name(), limit, f"{offset}..{last}")
        flat = self.data.reshape(-1)
        view = as_strided(
            flat[offset:],
            shape=[count for _, count in pattern],
            strides=[step * flat.itemsize for step, _ in pattern],
        )
        return NkiTensor(self.storage, view, dtype=self.dtype)

    def _check_pattern(
        self, pattern: Sequence[Sequence[int]], scalar_offset: object, vector_offset: object
    ) -> None:
        require(
            not self.buffer.is_on_chip, "ap", self._name(),
            "the emulator has access patterns on HBM tensors only", self.buffer.value,
        )
        # On a slice, sources disagree about what an explicit offset counts from.
        require(
            self.size == self.storage.data.size, "ap", self._name(),
            "call it on a whole tensor, not on a slice", f"a slice of shape {self.shape}",
        )
        require(
            all(len(pair) == 2 for pair in pattern), "ap", self._name(),  # noqa: PLR2004
            "the pattern must be [step, count] pairs", pattern,
        )
        require(
            scalar_offset is None or isinstance(scalar_offset, VirtualRegister), "ap",
            "scalar_offset", "it must be a VirtualRegister", type(scalar_offset).__name__,
        )
        require(
            scalar_offset is None or vector_offset is None, "ap", "scalar_offset, vector_offset",
            "they exclude each other", "both",
        )

    def _check_vector_offset(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int,
        index: NkiTensor,
        indirect_dim: int,
    ) -> None:
        operand = "vector_offset"
        require(indirect_dim == 0, "ap", operand, "indirect_dim must be 0", indirect_dim)
        require(offset == 0, "ap", operand, "an offset must not be combined with it", offset)
        require(
            index.buffer is Buffer.sbuf, "ap", operand, "it must be in SBUF", index.buffer.value
        )
        require(
            index.dtype in {int32, uint32}, "ap", operand, "it must be int32 or uint32", index.dtype
        )
        count = pattern[0][1]
        require_at_most("ap", operand, "rows", count, NUM_PARTITIONS)
        require(
            index.shape == (count, 1), "ap", operand, f"it must be ({count}, 1), one index a row",
            index.shape,
        )
        elements = math.prod(self.shape[1:])
        last = sum(step * (count - 1) for step, count in pattern[1:])
        require(
            last < elements, "ap", self._name(), f"a row has {elements} elements", f"{last + 1}"
        )

    def _name(self) -> str:
        return f"{self.buffer.value} tensor of shape {self.shape}"


def allocate(
    machine: Machine, shape: Sequence[int], dtype: DType, buffer: Buffer
) -> NkiTensor:
    """Make a tensor whose memory nobody has written to; see nl.ndarray."""
    shape, where = tuple(shape), f"buffer=nl.{buffer.value}"
    require(
        isinstance(dtype, DType), "nl.ndarray", "dtype", "it must be a format of nki.language",
        dtype,
    )
    if buffer.is_on_chip:
        require(
            len(shape) > 1, "nl.ndarray", where, "on chip a tensor has at least 2 dimensions", shape
        )
        require_at_most("nl.ndarray", where, "partitions", shape[0], NUM_PARTITIONS)
    if buffer is Buffer.shared_hbm:
        return _allocate_shared(machine, shape, dtype)
    storage = Storage(fresh(shape, dtype), dtype, buffer)
    num_bytes = math.prod(shape[1:]) * dtype.itemsize
    if buffer is Buffer.sbuf:
        machine.hold_sbuf(storage, num_bytes)
    elif buffer is Buffer.psum:
        machine.hold_psum(storage, -(-num_bytes // PSUM_BANK_BYTES))
    return NkiTensor(storage, storage.data, from_matmul=storage.from_matmul)


def _allocate_shared(machine: Machine, shape: tuple[int, ...], dtype: DType) -> NkiTensor:
    """The programs of a grid run one after the other; the first makes what all of them see."""
    number, machine.num_shared = machine.num_shared, machine.num_shared + 1
    if number == len(machine.shared):
        machine.shared.append(Storage(fresh(shape, dtype), dtype, Buffer.shared_hbm))
    storage = machine.shared[number]
    require(
        (storage.shape, storage.dtype) == (shape, dtype), "nl.ndarray", "buffer=nl.shared_hbm",
        f"all programs must allocate alike, the first {storage.shape} {storage.dtype}",
        f"{shape} {dtype}",
    )
    return NkiTensor(storage, storage.data)
