"""A NumPy emulator of NKI for machines without it: only what the kernels here use, and strict.

    from neuron_sched_lab import nki_emulator as emulator

    with emulator.counting() as counts:
        emulator.simulate(kernel)(x)       # as nki.simulate
    print(counts)

What it enforces beyond nki.simulate: SBUF and PSUM capacity, start partitions, accumulation onto
PSUM that no matmul has written, `.ap` on slices. What it does not know: time, overlap, order of
execution on different engines. Fresh float memory is NaN.
"""

from . import isa, language
from .counts import Counts, Dma, counting
from .limits import NkiValidationError
from .run import jit, simulate

__all__ = [
    "Counts",
    "Dma",
    "NkiValidationError",
    "counting",
    "isa",
    "jit",
    "language",
    "simulate",
]
