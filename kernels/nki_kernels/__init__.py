"""The kernels in the nki 0.7 namespace, for Trn2, one file each, and what they share.

Read kv_cache_update.py first, then paged_kv.py, online_softmax.py and the two attention kernels.
They obey the narrower rules of nki 0.6 too: no classes, no keyword-only arguments, no `is`.
"""

from .kv_cache_update import kv_cache_update_kernel
from .nki_or_emulator import HAS_NKI
from .paged_decode_attention import paged_decode_attention_kernel
from .segmented_attention import segmented_attention_kernel

__all__ = [
    "HAS_NKI",
    "kv_cache_update_kernel",
    "paged_decode_attention_kernel",
    "segmented_attention_kernel",
]
