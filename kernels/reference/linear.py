"""Reference of linear: x times a weight in Hugging Face's layout."""

from __future__ import annotations

import torch
from torch.nn import functional

MIN_ROWS_FOR_ONEDNN = 16
"""Below, setting up oneDNN's kernel costs more than it saves (measured at 8 rows)."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x @ weight.T: [rows, in] and [out, in] give [rows, out].

    For float32, torch calls MKL, which leaves AVX-512 unused on CPUs that are not Intel's: there
    oneDNN, which inductor's graphs call too, was measured 2 times as fast at 256 rows.

    `weight` or its transpose must be contiguous: other layouts oneDNN takes a hundred times as
    long for.
    """
    if _HAS_ONEDNN and x.dtype == torch.float32 and x.shape[0] >= MIN_ROWS_FOR_ONEDNN:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return functional.linear(x, weight)
