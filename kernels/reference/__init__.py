"""Torch references of the kernels: exact, readable, and what the `cpu` device runs."""

from .kv_cache_update import kv_cache_update
from .linear import linear
from .paged_decode_attention import paged_decode_attention
from .rms_norm import rms_norm
from .segmented_attention import segmented_attention

__all__ = ["kv_cache_update", "linear", "paged_decode_attention", "rms_norm", "segmented_attention"]
