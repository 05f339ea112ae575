"""Torch references of the kernels: exact, readable, and what the `cpu` device runs."""

from .kv_cache_update import kv_cache_update
from .linear import linear, pack
from .paged_decode_attention import paged_decode_attention
from .rms_norm import rms_norm
from .rotary import rotary, rotary_in_torch
from .segmented_attention import segmented_attention

__all__ = [
    "kv_cache_update",
    "linear",
    "pack",
    "paged_decode_attention",
    "rms_norm",
    "rotary",
    "rotary_in_torch",
    "segmented_attention",
]
