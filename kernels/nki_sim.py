"""The kernels of device "nki-sim": by nki.simulate where nki is installed, else emulated.

Slow, and meant for tiny shapes: every instruction of the kernels is a NumPy call.
"""

from __future__ import annotations

import os
from typing import Any

import torch

# Without a chip, nki.simulate would else assume a Trn3, which allows more.
os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")

from . import nki_kernels as kernels
from . import reference
from .interface import Kernels
from .nki_kernels.arguments import decode_arguments, prefill_arguments, update_arguments
from .nki_kernels.nki_or_emulator import nki


def segmented_attention(*args: Any) -> torch.Tensor:
    """Attend with the tokens of one chunk; see `interface.Kernels`."""
    return nki.simulate(kernels.segmented_attention_kernel)(*prefill_arguments(*args))


def paged_decode_attention(*args: Any) -> torch.Tensor:
    """Attend with one token per row; see `interface.Kernels`."""
    return nki.simulate(kernels.paged_decode_attention_kernel)(*decode_arguments(*args))


def kv_cache_update(*args: Any) -> None:
    """Write k and v into their slots, in place; see `interface.Kernels`."""
    nki.simulate(kernels.kv_cache_update_kernel)(*update_arguments(*args))


SIMULATED = Kernels(
    segmented_attention=segmented_attention,
    paged_decode_attention=paged_decode_attention,
    kv_cache_update=kv_cache_update,
    linear=reference.linear,
)
