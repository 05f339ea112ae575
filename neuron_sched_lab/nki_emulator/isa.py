"""Stands in for nki.isa: the instructions that the kernels use, with every limit enforced.

Destination first, as in nki. Arithmetic is done in float32 and cast to the destination's format.
Each instruction checks its operands, computes, and counts itself on its engine.
"""

from __future__ import annotations

from typing import Any

from .dma import dma_copy, oob_mode
from .limits import NkiValidationError
from .scalar_and_gpsimd import activation, iota, reduce_cmd, register_alloc, register_load
from .tensor import VirtualRegister
from .tensor_engine import nc_matmul, nc_transpose
from .vector_engine import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_reduce,
    tensor_scalar,
    tensor_tensor,
)

__all__ = [
    "NkiValidationError",
    "VirtualRegister",
    "activation",
    "dma_copy",
    "iota",
    "memset",
    "nc_matmul",
    "nc_transpose",
    "oob_mode",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_tensor",
]


def __getattr__(name: str) -> Any:
    why = "is not in the emulator, which has what the kernels use"
    if name in {"exponential", "activate2"}:
        why = "exists on Trn3 only"
    raise AttributeError(f"nisa.{name} {why}")
