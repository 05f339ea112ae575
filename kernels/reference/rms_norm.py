"""Reference of rms_norm: scale every row to a root mean square of 1."""

from __future__ import annotations

import torch
from torch.nn import functional

from .vllm_kernels import has_vllm_kernel


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise x [rows, size] and multiply it with weight [size].

    torch composes it of seven operators. vLLM's builds for the CPU have one; where they are
    loaded, a step of a small model was measured to take 4 to 10 percent less time.
    """
    if has_vllm_kernel("rms_norm"):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, eps)
        return out
    return functional.rms_norm(x, weight.shape, weight, eps)
