"""One NeuronCore while a kernel runs on it: which program it is, and what its memory holds."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from .counts import Counts
from .limits import PSUM_BANKS, SBUF_BYTES, require_at_most

if TYPE_CHECKING:
    from .storage import Storage


class Machine:
    """A NeuronCore.

    On-chip memory is in use from the allocation of a tensor until the last Python reference to it
    or to a view of it is gone. The compiler reuses memory in much the same way, but decides by
    itself, so a kernel that fits here may still not fit there.

    Attributes:
        program_id: number of this core in the grid.
        num_programs: cores in the grid.
        counts: where to count.
        shared: HBM tensors that the programs of a grid share, in the order of allocation.
        registers: registers allocated so far.
    """

    def __init__(
        self, program_id: int, num_programs: int, counts: Counts, shared: list[Storage]
    ) -> None:
        self.program_id, self.num_programs, self.counts = program_id, num_programs, counts
        self.shared = shared
        self.num_shared = 0
        self.registers = 0
        self._sbuf_bytes = 0
        self._psum_banks = 0

    def hold_sbuf(self, storage: Storage, num_bytes: int) -> None:
        """Take bytes of every partition for as long as the storage lives."""
        self._sbuf_bytes += num_bytes
        weakref.finalize(storage, self._release_sbuf, num_bytes)
        what = f"bytes of a partition in use with a tensor of shape {storage.shape}"
        require_at_most("nl.ndarray", "buffer=nl.sbuf", what, self._sbuf_bytes, SBUF_BYTES)
        self.counts.peak_sbuf_bytes = max(self.counts.peak_sbuf_bytes, self._sbuf_bytes)

    def hold_psum(self, storage: Storage, num_banks: int) -> None:
        """Take PSUM banks for as long as the storage lives."""
        self._psum_banks += num_banks
        weakref.finalize(storage, self._release_psum, num_banks)
        what = f"PSUM banks in use with a tensor of shape {storage.shape}"
        require_at_most("nl.ndarray", "buffer=nl.psum", what, self._psum_banks, PSUM_BANKS)
        self.counts.peak_psum_banks = max(self.counts.peak_psum_banks, self._psum_banks)

    def _release_sbuf(self, num_bytes: int) -> None:
        self._sbuf_bytes -= num_bytes

    def _release_psum(self, num_banks: int) -> None:
        self._psum_banks -= num_banks


_machine: ContextVar[Machine | None] = ContextVar("machine", default=None)


@contextmanager
def running_on(machine: Machine) -> Iterator[None]:
    """Make `machine` the one that operations run on."""
    token = _machine.set(machine)
    try:
        yield
    finally:
        _machine.reset(token)


def current_machine(operation: str) -> Machine:
    """Return the machine that runs.

    Raises:
        RuntimeError: no kernel is running.
    """
    machine = _machine.get()
    if machine is None:
        raise RuntimeError(f"{operation}: no kernel is running; call it through nki.simulate")
    return machine
