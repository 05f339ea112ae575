"""A model runner without a model: its KV cache holds token ids, its next token is a hash of them.

Each step writes the scheduled token ids into the slots (block * block_size + offset) that the
SchedulerOutput's block tables name. A finished context is read back through the same table, and
the next token is the checksum of what was read. A wrong block table, a lost resume, a stale prefix
hit or a chunk that was skipped then shows as a wrong token, in milliseconds.
"""

import zlib

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

VOCAB = 251
"""Prime, so that a wrong context gives the right token by chance once in 251 times only."""

POISON = -1
"""What an unwritten or reset slot holds; no token id."""


def next_token(context: np.ndarray) -> int:
    """The token after `context` (int32, shape [n]); depends on each id and on their order."""
    return zlib.crc32(np.ascontiguousarray(context, dtype=np.int32).tobytes()) % VOCAB


def expected_output(prompt: list[int], count: int) -> list[int]:
    """The first `count` tokens that any right scheduler must give for `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(np.array(tokens, dtype=np.int32)))
    return tokens[len(prompt) :]


class TokenOracle:
    """Executes SchedulerOutputs as a worker would, from nothing but what they carry.

    Like a real runner it keeps its own state of each request (token ids, block table) and learns
    of changes only through the output. Works for vLLM's two forms of output: a resumed request
    as a cached one named in resumed_req_ids, or (model runner V2) as a new one.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = np.full(num_blocks * block_size, POISON, dtype=np.int32)
        self.tokens: dict[str, list[int]] = {}
        self.slot_tables: dict[str, np.ndarray] = {}
        self.preempted: set[str] = set()
        self.finished: set[str] = set()

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step. Raises AssertionError on an output that no runner could execute."""
        self._drop(output.finished_req_ids)
        self.preempted |= output.preempted_req_ids or set()
        computed = self._take_new(output) | self._take_cached(output)
        assert computed.keys() == output.num_scheduled_tokens.keys(), (
            f"scheduled {sorted(output.num_scheduled_tokens)}, described {sorted(computed)}"
        )
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())

        req_ids = list(output.num_scheduled_tokens)
        sampled = [
            self._forward(req_id, computed[req_id], output.num_scheduled_tokens[req_id])
            for req_id in req_ids
        ]
        return ModelRunnerOutput(
            req_ids=req_ids,
            req_id_to_index={req_id: i for i, req_id in enumerate(req_ids)},
            sampled_token_ids=sampled,
        )

    def poison(self) -> None:
        """Forget all KV, as a weight update does; a hit on what was cached before then shows."""
        self.slots.fill(POISON)

    def _drop(self, finished_req_ids: set[str]) -> None:
        again = finished_req_ids & self.finished
        assert not again, f"finished twice: {sorted(again)}"
        self.finished |= finished_req_ids
        self.preempted -= finished_req_ids
        for req_id in finished_req_ids:
            self.tokens.pop(req_id, None)
            self.slot_tables.pop(req_id, None)

    def _take_new(self, output: SchedulerOutput) -> dict[str, int]:
        """Requests that come with their whole state; returns id -> num_computed_tokens."""
        computed = {}
        for new in output.scheduled_new_reqs:
            resumed = new.req_id in self.tokens
            assert not resumed or new.req_id in self.preempted, f"{new.req_id} started twice"
            self.preempted.discard(new.req_id)
            prefill = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            self.tokens[new.req_id] = list(prefill)
            self._set_blocks(new.req_id, new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        return computed

    def _take_cached(self, output: SchedulerOutput) -> dict[str, int]:
        """Requests known from before; returns id -> num_computed_tokens."""
        cached = output.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            known = self.tokens.get(req_id)
            assert known is not None, f"{req_id} was never started"
            new_blocks = cached.new_block_ids[i]
            all_tokens = cached.all_token_ids.get(req_id)
            if req_id in cached.resumed_req_ids:
                self.preempted.discard(req_id)
                self.tokens[req_id] = list(all_tokens)
                self._set_blocks(req_id, new_blocks[0])
                continue
            assert req_id not in self.preempted, f"{req_id} was preempted and not resumed"
            assert all_tokens is None or list(all_tokens) == known[: len(all_tokens)], (
                f"{req_id}: the scheduler's tokens are not the runner's"
            )
            if new_blocks is not None:
                self._append_blocks(req_id, new_blocks[0])
        return dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))

    def _forward(self, req_id: str, num_computed: int, num_new: int) -> list[int]:
        """Write `num_new` ids from position `num_computed` on; sample if none is left."""
        tokens, table = self.tokens[req_id], self.slot_tables[req_id]
        end = num_computed + num_new
        assert num_new > 0 and end <= len(tokens), (
            f"{req_id}: positions {num_computed}..{end} of {len(tokens)} known tokens"
        )
        assert end <= len(table), f"{req_id}: {end} tokens in {len(table)} slots"
        self.slots[table[num_computed:end]] = tokens[num_computed:end]
        if end < len(tokens):
            return []
        context = self.slots[table[:end]]
        wrong = np.flatnonzero(context != np.array(tokens, dtype=np.int32))
        assert wrong.size == 0, f"{req_id}: KV of positions {wrong.tolist()} is not its own"
        token = next_token(context)
        tokens.append(token)
        return [token]

    def _set_blocks(self, req_id: str, block_ids: list[int]) -> None:
        self.slot_tables[req_id] = np.empty(0, dtype=np.int64)
        self._append_blocks(req_id, block_ids)

    def _append_blocks(self, req_id: str, block_ids: list[int]) -> None:
        assert 0 not in block_ids, f"{req_id}: block 0 is vLLM's null block"
        first = np.array(block_ids, dtype=np.int64)[:, None] * self.block_size
        slots = (first + np.arange(self.block_size)).ravel()
        self.slot_tables[req_id] = np.concatenate([self.slot_tables[req_id], slots])
