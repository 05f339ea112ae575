"""What the runner remembers of each request between steps.

The scheduler sends a request once and then only changes. Token ids and block tables live in rows
of two arrays, so that the inputs of a decode step are gathered without a loop over requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.sampling_params import SamplingParams, SamplingType

from .inputs import NULL_BLOCK, Int32Array

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.sched.output import NewRequestData


@dataclass(eq=False)
class RequestState:
    """One request.

    Attributes:
        req_id: its id.
        row: of the table; -1 once the request has ended.
        prompt_token_ids: its prompt.
        sampling_params: as the user gave them.
        generator: its own random numbers if it has a seed.
        output_token_ids: tokens generated and known on the host. The list object stays the same,
            since vLLM's logits processors hold on to it.
        num_blocks: KV blocks in its row of the block table.
        lora_request: its LoRA adapter, or None.
    """

    req_id: str
    row: int
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    generator: torch.Generator | None
    output_token_ids: list[int] = field(default_factory=list)
    num_blocks: int = 0
    lora_request: LoRARequest | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)


def get_prefill_token_ids(new_req: NewRequestData) -> list[int]:
    """Return every token that a request from the waiting queue must have in the cache.

    In vLLM's "model runner V2" form a resumed request comes as a new one, its outputs included.
    """
    return new_req.prefill_token_ids or new_req.prompt_token_ids


class RequestTable:
    """All requests that the scheduler has started and not ended.

    Attributes:
        token_ids: [rows, max_model_len + 1], prompt and outputs.
        block_tables: [rows, max_blocks], in vLLM's convention: 0 where unused.
    """

    def __init__(self, num_rows: int, max_model_len: int, max_blocks: int) -> None:
        # One more: an async engine may sample a token behind the last one that counts.
        self.token_ids: Int32Array = np.zeros((num_rows, max_model_len + 1), dtype=np.int32)
        self.block_tables: Int32Array = np.full((num_rows, max_blocks), NULL_BLOCK, dtype=np.int32)
        self.states: dict[str, RequestState] = {}
        self._free_rows = list(range(num_rows))

    def add(self, new_req: NewRequestData) -> RequestState:
        """Take in a request that the scheduler sends as new.

        A known id is a resumed request in V2 form, or a streaming session with more input: it
        keeps its random numbers and is otherwise replaced.
        """
        known = self.states.get(new_req.req_id)
        if known is None:
            generator = _make_generator(new_req.sampling_params)
        else:
            generator = known.generator
            self.remove(new_req.req_id)
        state = RequestState(
            req_id=new_req.req_id,
            row=self._take_row(),
            prompt_token_ids=new_req.prompt_token_ids,
            sampling_params=new_req.sampling_params,
            generator=generator,
            lora_request=new_req.lora_request,
        )
        self.states[new_req.req_id] = state
        self.set_tokens(state, get_prefill_token_ids(new_req))
        self.set_blocks(state, new_req.block_ids[0])
        return state

    def remove(self, req_id: str) -> None:
        """Forget a request; an unknown id is one that never started."""
        state = self.states.pop(req_id, None)
        if state is not None:
            self._free_rows.append(state.row)
            state.row = -1

    def set_tokens(self, state: RequestState, token_ids: Sequence[int]) -> None:
        """Replace the tokens of a request: prompt, then outputs."""
        self.token_ids[state.row, : len(token_ids)] = token_ids
        state.output_token_ids[:] = token_ids[state.num_prompt_tokens :]

    def append_token(self, state: RequestState, position: int, token_id: int) -> None:
        """Store a sampled token; if the request has ended meanwhile, drop it."""
        if state.row >= 0:
            self.token_ids[state.row, position] = token_id
            state.output_token_ids.append(token_id)

    def set_blocks(self, state: RequestState, block_ids: Sequence[int]) -> None:
        """Replace the blocks of a request."""
        self.block_tables[state.row, len(block_ids) :] = NULL_BLOCK
        state.num_blocks = 0
        self.append_blocks(state, block_ids)

    def append_blocks(self, state: RequestState, block_ids: Sequence[int]) -> None:
        """Add blocks behind those of a request."""
        end = state.num_blocks + len(block_ids)
        self.block_tables[state.row, state.num_blocks : end] = block_ids
        state.num_blocks = end

    def _take_row(self) -> int:
        if not self._free_rows:
            # Preempted requests keep their rows, so there may be more than max_num_seqs.
            num_rows = len(self.token_ids)
            self._free_rows = list(range(num_rows, 2 * num_rows))
            self.token_ids = np.concatenate([self.token_ids, np.zeros_like(self.token_ids)])
            unused = np.full_like(self.block_tables, NULL_BLOCK)
            self.block_tables = np.concatenate([self.block_tables, unused])
        return self._free_rows.pop()


def _make_generator(params: SamplingParams) -> torch.Generator | None:
    if params.sampling_type != SamplingType.RANDOM_SEED:
        return None
    return torch.Generator().manual_seed(params.seed)
