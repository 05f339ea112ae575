"""NeuronConfig: the settings of the Neuron scheduler, read from vLLM's `additional_config`.

    LLM(..., additional_config={"neuron_config": {"num_batched_tokens_buckets": [512, 2048]}})

Everything is validated here, once, so that a bad ladder fails before an engine starts and not
at the first long prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from .buckets import (
    get_default_num_batched_tokens_buckets,
    get_default_num_seqs_buckets,
    validate_buckets,
)
from .kv_policies import KV_ADMISSION_POLICIES

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KV_SEGMENT_SIZES = (512, 1024, 2048, 4096)
"""Segment sizes that the segmented attention kernel of the Neuron SDK 2.33 supports, in tokens."""


@dataclass(frozen=True)
class NeuronConfig:
    """Validated settings. Build it with `from_dict` or `from_vllm_config`, not directly.

    Attributes:
        num_batched_tokens_buckets: prefill ladder, in tokens, ascending.
        num_seqs_buckets: decode ladder, in sequences, ascending.
        kv_segment_size_buckets: one size in tokens in which the attention kernel reads prior KV,
            or None. The scheduler only passes it on: how the kernel walks over prior KV is
            independent of how prompts are cut into chunks.
        max_consecutive_prefills: at most so many prefill steps in a row while decodes wait, or
            None for no limit, which is the seed's prefill priority (hole B9).
        max_decode_stall_tokens: at most so many prefill tokens, padding included, between two
            decode steps while decodes wait, or None for no limit. Finer than
            max_consecutive_prefills: a turn takes many short prompts or a few long ones.
        kv_admission: what must hold for a request to share the KV cache: "worst_case" (the
            seed's), "reservation" or "banker"; see `kv_policies.py`.
    """

    num_batched_tokens_buckets: tuple[int, ...]
    num_seqs_buckets: tuple[int, ...]
    kv_segment_size_buckets: tuple[int, ...] | None = None
    max_consecutive_prefills: int | None = None
    max_decode_stall_tokens: int | None = None
    kv_admission: str = "worst_case"

    @classmethod
    def from_dict(
        cls,
        mapping: Mapping[str, Any],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int | None = None,
    ) -> NeuronConfig:
        """Validate `neuron_config` against the limits of the vLLM engine it will run in.

        Args:
            mapping: what stands under `neuron_config`; every key is optional.
            max_num_seqs: vLLM's limit on running requests.
            max_num_batched_tokens: vLLM's token budget of a step.
            max_model_len: longest sequence, in tokens.
            block_size: tokens in a KV block, where known; checks kv_segment_size_buckets.

        Raises:
            ValueError: names the setting, the value found, the rule and the fix.
        """
        _check_keys(mapping, known=[field.name for field in fields(cls)])
        max_tokens = min(max_num_batched_tokens, max_model_len)
        num_batched_tokens_buckets = validate_buckets(
            "num_batched_tokens_buckets",
            mapping.get(
                "num_batched_tokens_buckets", get_default_num_batched_tokens_buckets(max_tokens)
            ),
            last=max_tokens,
            last_rule="min(max_num_batched_tokens, max_model_len)",
        )
        num_seqs_buckets = validate_buckets(
            "num_seqs_buckets",
            mapping.get("num_seqs_buckets", get_default_num_seqs_buckets(max_num_seqs)),
            last=max_num_seqs,
            last_rule="max_num_seqs",
        )
        return cls(
            num_batched_tokens_buckets=num_batched_tokens_buckets,
            num_seqs_buckets=num_seqs_buckets,
            kv_segment_size_buckets=_check_kv_segment_size(
                mapping.get("kv_segment_size_buckets"), num_batched_tokens_buckets, block_size
            ),
            max_consecutive_prefills=_check_max_consecutive_prefills(
                mapping.get("max_consecutive_prefills")
            ),
            max_decode_stall_tokens=_check_max_decode_stall_tokens(
                mapping.get("max_decode_stall_tokens"), num_batched_tokens_buckets
            ),
            kv_admission=_check_kv_admission(mapping.get("kv_admission", "worst_case")),
        )

    @classmethod
    def from_vllm_config(cls, vllm_config: VllmConfig) -> NeuronConfig:
        """Read and validate `vllm_config.additional_config["neuron_config"]`."""
        additional_config = vllm_config.additional_config
        mapping = additional_config.get("neuron_config") or {}
        return cls.from_dict(
            mapping,
            max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
            max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
            max_model_len=vllm_config.model_config.max_model_len,
            block_size=vllm_config.cache_config.block_size,
        )


def _check_keys(mapping: object, known: list[str]) -> None:
    if not isinstance(mapping, Mapping):
        raise ValueError(
            f"neuron_config: {mapping!r} is a {type(mapping).__name__}; it must be a dict "
            f"with keys among {known}"
        )
    for key in mapping:
        if key not in known:
            nearest = get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"neuron_config: {key!r} is no known key; did you mean {nearest!r}? "
                f"(known: {', '.join(known)})"
            )


def _check_kv_segment_size(
    value: object, num_batched_tokens_buckets: tuple[int, ...], block_size: int | None
) -> tuple[int, ...] | None:
    """Accept one kernel-supported size that equals the single prefill bucket."""
    if value is None:
        return None
    name = "kv_segment_size_buckets"
    if not isinstance(value, (list, tuple)) or len(value) != 1:
        raise ValueError(f"{name}: {value!r} must be a list of one size, such as [2048]")
    size = value[0]
    if isinstance(size, bool) or size not in KV_SEGMENT_SIZES:
        raise ValueError(f"{name}: {size!r} must be one of {list(KV_SEGMENT_SIZES)}; choose one")
    if block_size is not None and size % block_size:
        raise ValueError(
            f"{name}: {size} must be a multiple of block_size = {block_size}; "
            f"choose a block_size that divides it"
        )
    if num_batched_tokens_buckets != (size,):
        raise ValueError(
            f"{name}: {size} must equal the single num_batched_tokens bucket, found "
            f"{list(num_batched_tokens_buckets)}; set num_batched_tokens_buckets = [{size}] "
            f"and max_num_batched_tokens = {size}"
        )
    return (size,)


def _check_max_consecutive_prefills(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"max_consecutive_prefills: {value!r} must be an int of at least 1, or left out "
            f"for no limit"
        )
    return value


def _check_max_decode_stall_tokens(
    value: object, num_batched_tokens_buckets: tuple[int, ...]
) -> int | None:
    """Accept a limit of at least the last bucket: one full chunk would break a smaller one."""
    if value is None:
        return None
    longest = num_batched_tokens_buckets[-1]
    if isinstance(value, bool) or not isinstance(value, int) or value < longest:
        raise ValueError(
            f"max_decode_stall_tokens: {value!r} must be an int of at least the last bucket of "
            f"num_batched_tokens_buckets = {longest}; raise it, lower max_num_batched_tokens, or "
            f"leave it out for no limit"
        )
    return value


def _check_kv_admission(value: object) -> str:
    if not isinstance(value, str) or value not in KV_ADMISSION_POLICIES:
        raise ValueError(
            f"kv_admission: {value!r} must be one of {list(KV_ADMISSION_POLICIES)}; choose one or "
            f"leave it out for the first"
        )
    return value
