"""Checks that somebody who has nki, or a Trn2, can run: the kernels against their references.

The same few cases everywhere: GQA 1, 4 and 8, head_dim 64 and 128, float32 and bfloat16, a prior
context that ends within a block, blocks -1, ragged decode lengths, skipped slots. NaN stands in
every unused slot and padding token.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .dispatch import REFERENCE
from .interface import Kernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Largest error of a row, relative to its largest number."""

BLOCK_SIZE, NUM_BLOCKS, SEGMENT, BUCKET = 16, 64, 128, 256
PRIOR, NUM_TOKENS = 200, 150
CONTEXT_LENS = (0, 16, 37, 300)


@dataclass(frozen=True)
class CheckResult:
    """One kernel on one case.

    Attributes:
        name: kernel and case.
        passed: whether it agrees with the reference.
        detail: the largest relative error, or what went wrong.
    """

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Case:
    """Heads and number format of one case."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def __str__(self) -> str:
        heads = f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}"
        return f"{heads}, {str(self.dtype).removeprefix('torch.')}"


CASES = tuple(
    Case(num_heads, num_kv_heads, head_dim, dtype)
    for num_heads, num_kv_heads, head_dim in ((2, 2, 64), (4, 1, 128), (16, 2, 64))
    for dtype in (torch.float32, torch.bfloat16)
)


def find_nki() -> str | None:
    """Return None where nki.simulate can run, else the reason why not."""
    return None if importlib.util.find_spec("nki") else "nki is not installed"


def check_simulate() -> list[CheckResult]:
    """Run the kernels as device "nki-sim" does: under nki.simulate if nki is installed.

    Without it, under the emulator; `find_nki` says which.
    """
    from .nki_sim import SIMULATED

    return check_kernels(SIMULATED, put=lambda tensor: tensor)


def check_device() -> list[CheckResult]:
    """Run the kernels on the Trn2. NOT RUN ON HARDWARE so far.

    Raises:
        ImportError: torch-neuronx or nki is not installed.
    """
    from .registration import register

    return check_kernels(register(), put=lambda tensor: tensor.to("neuron"))


def check_kernels(
    kernels: Kernels, put: Callable[[torch.Tensor], torch.Tensor]
) -> list[CheckResult]:
    """Compare kernels with the references on every case.

    Args:
        kernels: to check.
        put: moves a tensor to where they run.
    """
    results = []
    for case in CASES:
        for name, check in (
            ("kv_cache_update", _check_update),
            ("segmented_attention", _check_prefill),
            ("paged_decode_attention", _check_decode),
        ):
            try:
                error = check(kernels, case, put)
            except Exception as problem:  # noqa: BLE001  (a report says what failed and goes on)
                results.append(CheckResult(f"{name}: {case}", False, _in_one_line(problem)))
                continue
            passed = error <= TOLERANCE[case.dtype]
            results.append(CheckResult(f"{name}: {case}", passed, f"largest error {error:.1e}"))
    return results


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error of a row, relative to its largest number; inf if it is NaN."""
    found, expected = found.double().cpu(), expected.double()
    errors = (found - expected).abs().amax(-1) / expected.abs().amax(-1).clamp(min=1e-30)
    worst = errors.max()
    return float("inf") if worst.isnan() else float(worst)


def _check_update(kernels: Kernels, case: Case, put: Callable[..., Any]) -> float:
    draw = _Random(case)
    k_cache, v_cache = draw.cache(), draw.cache()
    k, v = draw.numbers(40, case.num_kv_heads), draw.numbers(40, case.num_kv_heads)
    slots = draw.permutation(NUM_BLOCKS * BLOCK_SIZE)[:40]
    slots[::5] = -1
    expected = k_cache.clone(), v_cache.clone()
    REFERENCE.kv_cache_update(k, v, *expected, slots)
    found = put(k_cache), put(v_cache)
    kernels.kv_cache_update(put(k), put(v), *found, put(slots))
    return max(
        0.0 if torch.equal(ours.cpu(), theirs) else float("inf")
        for ours, theirs in zip(found, expected, strict=True)
    )


def _check_prefill(kernels: Kernels, case: Case, put: Callable[..., Any]) -> float:
    draw = _Random(case)
    q, k, v = draw.active(BUCKET, NUM_TOKENS)
    k_cache, v_cache, tables = draw.paged([PRIOR], max_blocks=24)
    tensors = (q, k, v, k_cache, v_cache, tables[0], _int32(PRIOR), _int32(NUM_TOKENS))
    constants = (SEGMENT, case.head_dim**-0.5)
    expected = REFERENCE.segmented_attention(*tensors, *constants)
    found = kernels.segmented_attention(*map(put, tensors), *constants).cpu()
    if not found.isfinite().all():
        return float("inf")
    return relative_error(found[:NUM_TOKENS], expected[:NUM_TOKENS])


def _check_decode(kernels: Kernels, case: Case, put: Callable[..., Any]) -> float:
    draw = _Random(case)
    batch = len(CONTEXT_LENS)
    q, k, v = draw.active(batch, batch)
    k_cache, v_cache, tables = draw.paged(list(CONTEXT_LENS), max_blocks=24)
    tensors = (q, k, v, k_cache, v_cache, tables, _int32(*CONTEXT_LENS))
    scale = case.head_dim**-0.5
    expected = REFERENCE.paged_decode_attention(*tensors, scale)
    return relative_error(
        kernels.paged_decode_attention(*map(put, tensors), scale).cpu(), expected
    )


class _Random:
    """Random tensors of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.generator = torch.Generator().manual_seed(0)

    def numbers(self, rows: int, heads: int) -> torch.Tensor:
        shape = (rows, heads, self.case.head_dim)
        return torch.randn(shape, generator=self.generator).to(self.case.dtype)

    def permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator, dtype=torch.int32)

    def cache(self) -> torch.Tensor:
        """A cache of distinct finite numbers."""
        case = self.case
        cache = self.numbers(NUM_BLOCKS * BLOCK_SIZE, case.num_kv_heads)
        return cache.reshape(NUM_BLOCKS, case.num_kv_heads, BLOCK_SIZE, case.head_dim)

    def active(self, rows: int, real: int) -> Iterator[torch.Tensor]:
        """q, k, v of the active tokens; NaN behind the real ones."""
        for heads in (self.case.num_heads, self.case.num_kv_heads, self.case.num_kv_heads):
            x = self.numbers(rows, heads)
            x[real:] = float("nan")
            yield x

    def paged(
        self, lengths: list[int], max_blocks: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Caches that are NaN but for the context of each row, and the block tables."""
        k_cache, v_cache = self.cache(), self.cache()
        free = self.permutation(NUM_BLOCKS).tolist()
        tables = torch.full((len(lengths), max_blocks), -1, dtype=torch.int32)
        is_used = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.bool)
        for row, length in enumerate(lengths):
            for column in range(length // BLOCK_SIZE + 1):
                tables[row, column] = block = free.pop()
                is_used[block, : max(0, length - column * BLOCK_SIZE)] = True
        unused = ~is_used[:, None, :, None]
        return (
            k_cache.masked_fill(unused, float("nan")),
            v_cache.masked_fill(unused, float("nan")),
            tables,
        )


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _in_one_line(problem: Exception) -> str:
    text = f"{type(problem).__name__}: {problem}"
    return " ".join(text.split())[:400]
