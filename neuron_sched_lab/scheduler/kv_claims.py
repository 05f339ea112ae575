"""How many KV blocks each request holds and may claim, read from vLLM's own block tables.

vLLM gives out blocks without looking ahead. The policies in `kv_policies.py` need
both: blocks held now (vLLM's block tables) and blocks at most in the end (prompt + max_tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
)

from .kv_policies import Holder, KVState

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request


class _Group(NamedTuple):
    """One KV cache group: layers that share a block table.

    Attributes:
        blocks: block table of each request by id, vLLM's own.
        block_size: tokens in a block.
        max_blocks: most blocks of one request, where blocks behind a window are given back and
            null blocks take their place; else None.
    """

    blocks: Mapping[str, list[Any]]
    block_size: int
    max_blocks: int | None

    def count_held(self, request_id: str) -> int:
        blocks = self.blocks.get(request_id, ())
        if self.max_blocks is None:
            return len(blocks)
        # Count from the end: in a long table every block before the window is a null block.
        return sum(1 for _ in takewhile(lambda block: not block.is_null, reversed(blocks)))

    def count_shared(self, request_id: str) -> int:
        return sum(block.ref_cnt > 1 for block in self.blocks.get(request_id, ()))

    def count_for(self, num_tokens: int) -> int:
        """Blocks for so many tokens, at most."""
        num_blocks = cdiv(num_tokens, self.block_size)
        return num_blocks if self.max_blocks is None else min(num_blocks, self.max_blocks)

    def count_missing(self, request_id: str, num_tokens: int) -> int:
        """Entries that the block table lacks for so many tokens."""
        return max(0, cdiv(num_tokens, self.block_size) - len(self.blocks.get(request_id, ())))


class KVClaims:
    """Counts blocks of requests, over all KV cache groups. Changes nothing in vLLM.

    Attributes:
        num_blocks: blocks that requests can hold in all.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Read the groups of a scheduler that has not started any request.

        Raises:
            ValueError: a KV connector or a kind of KV cache whose blocks cannot be foretold.
        """
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        # Asked for, not computed: vLLM keeps the null block, some models keep others for good.
        self.num_blocks = self._pool.get_num_free_blocks()
        self._max_model_len = scheduler.max_model_len
        self._num_lookahead_tokens = scheduler.num_lookahead_tokens
        self._num_spec_tokens = scheduler.num_spec_tokens
        if scheduler.connector is not None:
            raise ValueError(
                "kv_admission: with a KV connector, blocks are held by requests that do not run "
                "and freed late, which only 'worst_case' survives; choose it or drop "
                "kv_transfer_config"
            )
        self._groups = [
            _Group(
                single_type_manager.req_to_blocks,
                single_type_manager.block_size,
                _get_max_blocks(group.kv_cache_spec, scheduler.vllm_config),
            )
            for single_type_manager, group in zip(
                manager.coordinator.single_type_managers,
                scheduler.kv_cache_config.kv_cache_groups,
                strict=True,
            )
        ]
        self._gives_blocks_back = any(group.max_blocks is not None for group in self._groups)
        # Counting takes time for each block held, so not where nothing can be shared.
        self._may_share = manager.enable_caching and not self._gives_blocks_back

    def count_held(self, request: Request) -> int:
        """Blocks in the request's block tables; a shared block counts for each holder."""
        return sum(group.count_held(request.request_id) for group in self._groups)

    def get_claim(self, request: Request) -> int:
        """Most blocks that the request will ever hold."""
        return self._count_for(self._get_claimed_tokens(request))

    def get_state(self, requests: Iterable[Request], decodes: Iterable[Request] = ()) -> KVState:
        """Return the state in which each of `requests` holds what it was promised.

        A prefill is promised its whole prompt at once, so its later chunks need not ask. A
        streaming session is promised its whole claim for as long as it lasts: it keeps its blocks
        between two inputs, and nobody knows when it gives them back. What is promised to it is
        taken out of the cache that the others share.

        Args:
            requests: all that hold blocks, and a newcomer as if it had been let in, in the order
                in which they are to be served.
            decodes: those of them that are past their prompt.
        """
        past_prompt = set(decodes)
        num_blocks, num_free = self.num_blocks, self._pool.get_num_free_blocks()
        holders = []
        for request in requests:
            held, claim = self.count_held(request), self.get_claim(request)
            if request.resumable:
                num_blocks -= claim
                num_free -= claim - held
            elif request in past_prompt:
                # With steps in flight vLLM may look past max_tokens; want no more than the claim.
                want = min(self._count_wanted(request), claim - held)
                shared = self._count_shared(request)
                holders.append(Holder(request.request_id, held, claim, want, shared))
            else:
                promised = max(held, self._count_for(request.num_tokens))
                num_free -= promised - held
                shared = self._count_shared(request)
                holders.append(Holder(request.request_id, promised, claim, shared=shared))
        if self._gives_blocks_back:
            # A shared block that leaves the window of one request is free only when it has left
            # those of all; until then two blocks are needed where one was. So count no sharing.
            num_free = num_blocks - sum(holder.allocated for holder in holders)
        return KVState(num_blocks, num_free, holders)

    def _count_shared(self, request: Request) -> int:
        """Blocks that the request has in common with others."""
        if not self._may_share:
            return 0
        return sum(group.count_shared(request.request_id) for group in self._groups)

    def _get_claimed_tokens(self, request: Request) -> int:
        if request.resumable:
            # A session's next input may be of any length.
            return self._max_model_len
        drafted = self._num_spec_tokens + self._num_lookahead_tokens
        num_tokens = request.num_prompt_tokens + request.max_tokens + drafted
        return min(num_tokens, self._max_model_len)

    def _count_for(self, num_tokens: int) -> int:
        return sum(group.count_for(num_tokens) for group in self._groups)

    def _count_wanted(self, request: Request) -> int:
        """Blocks that vLLM will allocate when it schedules the decode next."""
        in_flight = request.num_output_placeholders
        num_tokens = request.num_tokens_with_spec + in_flight + self._num_lookahead_tokens
        return sum(group.count_missing(request.request_id, num_tokens) for group in self._groups)


def _get_max_blocks(spec: Any, vllm_config: Any) -> int | None:
    if isinstance(spec, FullAttentionSpec):
        return None
    if isinstance(spec, (SlidingWindowSpec, ChunkedLocalAttentionSpec)):
        return cdiv(spec.max_memory_usage_bytes(vllm_config), spec.page_size_bytes)
    raise ValueError(
        f"kv_admission: how many blocks a {type(spec).__name__} will take cannot be foretold; "
        f"choose 'worst_case'"
    )
