"""Which of vLLM's kernels for the CPU are loaded; the runner loads them where vLLM has them."""

from __future__ import annotations

from functools import cache

import torch


@cache
def has_vllm_kernel(name: str) -> bool:
    """Return whether `torch.ops._C` has this kernel, and for the CPU."""
    return hasattr(torch.ops._C, name) and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"_C::{name}", "CPU"
    )
