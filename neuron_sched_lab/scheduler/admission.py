"""Lesson 5: KVAdmissionScheduler starts a request only if nobody will ever have to be preempted.

A decode needs a new KV block every `block_size` tokens. If more requests run than can all grow
to `max_model_len`, the cache can run dry in the middle of their generation, and Neuron does not
preempt. Worse, with the decodes hidden behind a prefill that does not fit, the seed's design
stops for ever. So the question is asked at the door.

Source: the seed, "Deadlock Prevention: KV Cache Admission Control".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import FullAttentionSpec

from .holdback import HoldReason
from .padding import PaddedScheduler

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

NUM_NULL_BLOCKS = 1
"""vLLM keeps block 0 as the null block: it is counted in `num_blocks` and never given out."""


def get_blocks_per_request(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """Return the KV blocks that one request of `max_model_len` tokens takes, over all groups."""
    max_concurrency = get_max_concurrency_for_kv_cache_config(vllm_config, kv_cache_config)
    # vLLM computes num_blocks / blocks_per_request; undo the division rather than copy the sum.
    return round(kv_cache_config.num_blocks / max_concurrency)


def get_max_kv_concurrent(num_blocks: int, blocks_per_request: int) -> int:
    """Return how many requests can all grow to `max_model_len` at once, at least 1.

    The null block does not count (hole B1: the seed divides all of `num_blocks`, and admits one
    request too many when they are an exact multiple). A cache that holds less than one such
    request still runs one at a time (B2: the seed then switches the bound off).
    """
    return max(1, (num_blocks - NUM_NULL_BLOCKS) // blocks_per_request)


class KVAdmissionScheduler(PaddedScheduler):
    """Holds a prefill back while the running requests might need the whole KV cache.

    The bound is the seed's worst case, every running request growing to `max_model_len`. It
    costs concurrency when requests finish earlier, which lesson 5 measures; in return vLLM never
    preempts.

    Against the seed's text: the null block is left out of the count (hole B1), the bound is
    never switched off (B2), and a request that cannot fit even alone is refused when it is added
    instead of waiting for ever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A model without a KV cache is bounded by the seats alone.
        self._max_kv_concurrent = self.max_num_seqs
        if self.kv_cache_config.kv_cache_groups:
            self._max_kv_concurrent = get_max_kv_concurrent(
                self.kv_cache_config.num_blocks,
                get_blocks_per_request(self.vllm_config, self.kv_cache_config),
            )

    def can_schedule(self, request: Request) -> bool:
        """Also hold a prefill back while the running requests saturate the KV cache."""
        if not super().can_schedule(request):
            return False
        if self.num_seats_taken >= self._max_kv_concurrent:
            return self._hold(HoldReason.KV_SATURATED)
        return True

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: not even an empty KV cache can hold its prompt and its `max_tokens`.
        """
        max_tokens = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)
        usable = self.kv_cache_config.num_blocks - NUM_NULL_BLOCKS
        for group in self.kv_cache_config.kv_cache_groups:
            # Other specs (sliding window, Mamba) keep less than the whole sequence.
            if not isinstance(group.kv_cache_spec, FullAttentionSpec):
                continue
            block_size = group.kv_cache_spec.block_size
            needed = cdiv(max_tokens, block_size)
            if needed > usable:
                raise ValueError(
                    f"request {request.request_id!r}: prompt + max_tokens = {max_tokens} tokens "
                    f"need {needed} KV blocks of {block_size}, the cache has {usable}; lower "
                    f"max_tokens or raise num_gpu_blocks_override"
                )
        super().add_request(request)
