"""Reference of linear: x times a weight in Hugging Face's layout, or in oneDNN's own."""

from __future__ import annotations

import weakref
from threading import Lock

import torch
from torch.nn import functional

from .vllm_kernels import has_vllm_kernel

MIN_ROWS_FOR_ONEDNN = 16
"""For fewer rows, setting up oneDNN's kernel costs more than it saves (measured at 8 rows)."""

NUM_REMEMBERED_SHAPES = 64
"""Numbers of rows for which a packed weight keeps oneDNN's kernel; a usual ladder has fewer."""

_LOCK = Lock()
"""vLLM's kernel gives wrong products where two threads multiply at once (measured, vLLM 0.29)."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)


class PackedWeight:
    """A float32 weight in the layout that oneDNN reads fastest, held by vLLM's kernel for it.

    Against a plain weight, 256 rows were measured to take 5 to 15 percent less time, and 4 rows of
    a large weight 60 to 70 percent less.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._num_out, self._num_in = weight.shape
        handle = torch.ops._C.create_onednn_mm_handler(weight.T, NUM_REMEMBERED_SHAPES)
        self._handle = torch.tensor(handle)  # int64: the operator takes the pointer as a tensor
        weakref.finalize(self, torch.ops._C.release_dnnl_matmul_handler, handle)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T: [rows, in] gives [rows, out].

        Raises:
            ValueError: x has another width, which the kernel would not notice.
        """
        if x.shape[1] != self._num_in:
            raise ValueError(f"x: {list(x.shape)} must have {self._num_in} columns")
        out = x.new_empty((x.shape[0], self._num_out))
        with _LOCK:
            torch.ops._C.onednn_mm(out, x, None, self._handle)
        return out

    def __reduce_ex__(self, protocol: object) -> str:
        """Refuse to be copied or pickled: a copy would use memory that it does not own."""
        raise TypeError("PackedWeight cannot be copied; copy a model before pack_weights()")


def pack(weight: torch.Tensor) -> torch.Tensor | PackedWeight:
    """Return a weight [out, in] for `linear`, packed where vLLM's kernel for that is loaded."""
    if has_vllm_kernel("onednn_mm") and weight.dtype == torch.float32:
        return PackedWeight(weight)
    return weight


def linear(x: torch.Tensor, weight: torch.Tensor | PackedWeight) -> torch.Tensor:
    """Return x @ weight.T: [rows, in] and [out, in] give [rows, out].

    For float32, torch calls MKL, which leaves AVX-512 unused on CPUs that are not Intel's: there
    oneDNN, which inductor's graphs call too, was measured 2 times as fast at 256 rows.

    A plain `weight` or its transpose must be contiguous: for other layouts oneDNN takes a
    hundred times as long.
    """
    if isinstance(weight, PackedWeight):
        return weight.multiply(x)
    if _HAS_ONEDNN and x.dtype == torch.float32 and x.shape[0] >= MIN_ROWS_FOR_ONEDNN:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return functional.linear(x, weight)
