"""Lesson 5: KVAdmissionScheduler starts a request only if nobody will ever have to be preempted.

A decode needs a new KV block every `block_size` tokens. If more requests run than can all grow
to `max_model_len`, the cache can run dry in the middle of their generation, and Neuron does not
preempt. Worse, with the decodes hidden behind a prefill that does not fit, the seed's design
stops for ever. So the question is asked before a request starts.

The seed's answer counts on the worst case. `neuron_config["kv_admission"]` offers two others that
keep the same promise and let more requests in; `kv_policies.py` explains them.

Source: the seed, "Deadlock Prevention: KV Cache Admission Control".
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

from .holdback import HoldReason
from .kv_claims import KVClaims
from .kv_policies import KVState, banker_admits, claims_fit, get_held_back, worst_case_fits
from .padding import PaddedScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    By default the bound is the seed's worst case, every running request growing to
    `max_model_len`. It costs concurrency when requests finish earlier, which lesson 5 measures; in
    return vLLM never preempts. With `kv_admission` "reservation" each request counts with its own
    prompt + max_tokens; with "banker" blocks are lent beyond what there is, and in a step in which
    they are short some decodes wait (`held_decodes`).

    Against the seed's text: the null block is left out of the count (hole B1), the bound is
    never switched off (B2), a request that cannot fit even alone is refused when it is added
    instead of waiting for ever, and a streaming session counts for as long as it holds blocks,
    also while its next input waits in the queue.
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
        self._kv_claims: KVClaims | None = None
        if self.neuron_config.kv_admission != "worst_case":
            self._kv_claims = KVClaims(self)
        self._holds_decodes = self.neuron_config.kv_admission == "banker"
        self._sessions: list[Request] = []

    def _restore_admitted(self) -> None:
        """Let a session that holds blocks overtake a head that they keep out.

        Such a head would wait for the session, and the session, behind it in the queue, for it.
        """
        super()._restore_admitted()
        if not self._sessions or self.admitted_from:
            return
        if self.hold_reason is not HoldReason.KV_SATURATED:
            return
        for session in self._get_sessions_between_inputs():
            if session.status == RequestStatus.WAITING and self.can_schedule(session):
                in_side = session in self._side_holdback
                self._admit(session, self._side_holdback if in_side else self.holdback_queue)
                break
        self.hold_reason = HoldReason.KV_SATURATED  # the head's

    def can_schedule(self, request: Request) -> bool:
        """Also hold a prefill back while the running requests saturate the KV cache."""
        if not super().can_schedule(request):
            return False
        if not self._kv_admits(request):
            return self._hold(HoldReason.KV_SATURATED)
        return True

    def _kv_admits(self, request: Request) -> bool:
        """Tell whether the policy lets `request` share the KV cache with those who hold blocks."""
        between_inputs = self._get_sessions_between_inputs(but=request)
        num_holders = len(self.running) + len(between_inputs) + 1
        if num_holders == 1:
            # Alone it fits, or add_request() would have refused it.
            return True
        if self._kv_claims is None:
            return worst_case_fits(num_holders, self._max_kv_concurrent)
        others = [*between_inputs, request]
        if self.neuron_config.kv_admission == "reservation":
            claims = map(self._kv_claims.get_claim, chain(self.running, others))
            return claims_fit(claims, self._kv_claims.num_blocks)
        return banker_admits(self.get_kv_state(others))

    def get_kv_state(self, others: Iterable[Request] = ()) -> KVState:
        """Return who holds and claims what: the running requests, oldest first, and `others`.

        With the priority policy, the most important first.

        Raises:
            RuntimeError: kv_admission is "worst_case", which keeps no such books.
        """
        if self._kv_claims is None:
            raise RuntimeError(
                "kv_admission: 'worst_case' counts requests, not blocks; set neuron_config"
                '["kv_admission"] to "reservation" or "banker" to see claims'
            )
        by_priority = self.policy == SchedulingPolicy.PRIORITY
        running = sorted(self.running) if by_priority else self.running
        decodes = [r for r in running if not (r.is_prefill_chunk and self._is_prefill_request(r))]
        return self._kv_claims.get_state([*running, *others], decodes)

    def _get_ready_decodes(self, decodes: list[Request]) -> list[Request]:
        """Leave out the decodes whose next block the banker must not lend now."""
        if not self._holds_decodes:
            return decodes
        state = self.get_kv_state(self._get_sessions_between_inputs())
        held_back = get_held_back(state)
        return [r for r in decodes if r.request_id not in held_back] if held_back else decodes

    def _get_sessions_between_inputs(self, but: Request | None = None) -> list[Request]:
        """Return the streaming sessions that hold blocks and do not run, all `but` one."""
        if not self._sessions:
            return []
        self._sessions = [r for r in self._sessions if not r.is_finished()]
        return [
            r
            for r in self._sessions
            if r is not but
            and r.status != RequestStatus.RUNNING
            and any(self.kv_cache_manager.get_block_ids(r.request_id))
        ]

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
        if request.resumable and request.request_id not in self.requests:
            self._sessions.append(request)
        super().add_request(request)
