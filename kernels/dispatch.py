"""Which kernels a device runs.

What each kernel promises stands in `interface`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from . import reference
from .interface import Kernels

REFERENCE = Kernels(
    segmented_attention=reference.segmented_attention,
    paged_decode_attention=reference.paged_decode_attention,
    kv_cache_update=reference.kv_cache_update,
    linear=reference.linear,
    pack=reference.pack,
    rms_norm=reference.rms_norm,
    rotary=reference.rotary,
)

DEVICES = ("cpu", "nki-sim", "neuron")
"""Devices that have kernels."""


def get_kernels(device: str) -> Kernels:
    """Return the kernels of a device. What a device needs is imported when it is asked for.

    Raises:
        NotImplementedError: the device has none.
        ImportError: neuron, and torch-neuronx or nki is not installed.
    """
    if device == "cpu":
        return REFERENCE
    if device == "nki-sim":
        from .nki_sim import SIMULATED

        return SIMULATED
    if device == "neuron":
        from .registration import register

        return register()
    raise NotImplementedError(
        f"device: {device!r} has no kernels; kernels exist for {DEVICES}: choose one"
    )


@cache
def reference_as_graph_nodes() -> Kernels:
    """Return the references as torch operators, each one opaque node to torch.compile.

    A reference decides at run time how much it reads, which no static graph can express. An NKI
    kernel is such a node by itself. Everything else is left to the compiler, weights unpacked.
    """

    def register(kernel: Callable[..., Any], mutates: tuple[str, ...] = ()) -> Callable[..., Any]:
        name = f"neuron_sched_lab::{kernel.__name__}"
        operator = torch.library.custom_op(name, kernel, mutates_args=mutates)
        operator.register_fake(lambda q, *_: None if mutates else torch.empty_like(q))
        return operator

    return Kernels(
        segmented_attention=register(reference.segmented_attention),
        paged_decode_attention=register(reference.paged_decode_attention),
        kv_cache_update=register(reference.kv_cache_update, ("k_cache", "v_cache")),
        linear=functional.linear,
    )
