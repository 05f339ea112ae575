"""StepRecord: what happened in one step, and the settings and requests that it belongs to.

A live Lab and a simulation write the same records; boards, metrics, checks and widgets read them
and nothing else. Everything in a record is plain data (str, int, float, tuples of them), so that
it can be saved, compared and drawn without an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PREFILL, DECODE, MIXED, EMPTY = "prefill", "decode", "mixed", "empty"


class Scheduled(NamedTuple):
    """One request's share of a step.

    Attributes:
        request_id: the request.
        phase: `prefill` or `decode`.
        num_computed_tokens: tokens in its KV cache before the step.
        num_tokens: tokens computed in the step (actual).
        num_padded_tokens: tokens of its tensor row; equal to `num_tokens` where nothing is padded.
        new_token_ids: tokens sampled for it in the step.
    """

    request_id: str
    phase: str
    num_computed_tokens: int
    num_tokens: int
    num_padded_tokens: int
    new_token_ids: tuple[int, ...] = ()


class StepInputs(NamedTuple):
    """The padded tensors of a step, flattened: one number a token (prefill) or a row (decode).

    Attributes:
        input_ids: token ids, padding included.
        positions: positions in the sequence.
        slot_mapping: KV-cache slots written, -1 for padding.
    """

    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    slot_mapping: tuple[int, ...]


@dataclass(frozen=True)
class TraceConfig:
    """The settings of the engine that a trace comes from.

    Attributes:
        scheduler: name of the scheduler class.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step.
        max_model_len: longest sequence, in tokens.
        block_size: tokens in a KV block.
        kv_blocks_total: usable KV blocks (vLLM's null block not counted).
        num_batched_tokens_buckets: prefill ladder, or None if nothing is padded.
        num_seqs_buckets: decode ladder, or None if nothing is padded.
        max_kv_concurrent: how many requests the KV bound lets run, or None without a bound.
        kv_admission: which policy admits requests to the KV cache, or None without one.
    """

    scheduler: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    kv_blocks_total: int
    num_batched_tokens_buckets: tuple[int, ...] | None = None
    num_seqs_buckets: tuple[int, ...] | None = None
    max_kv_concurrent: int | None = None
    kv_admission: str | None = None


@dataclass(frozen=True)
class RequestInfo:
    """What a trace knows of a request from the moment it was added.

    Attributes:
        request_id: as the user gave it.
        num_prompt_tokens: prompt length, in tokens.
        max_tokens: most tokens it may generate.
        arrived_before_step: the first step that could schedule it.
        prompt: its text, or None if token ids were given.
        adapter: name of its LoRA adapter, or None.
    """

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    arrived_before_step: int
    prompt: str | None = None
    adapter: str | None = None


@dataclass(frozen=True)
class StepRecord:
    """One call of a scheduler's `schedule()` and what came of it.

    The queues are those that vLLM's scheduler faced: `waiting` it could see, `held_back` and
    `hidden` were set aside for the step. They hold the first ids only where a queue is longer
    than the recorder's limit; the `num_*` counts are always whole.

    Attributes:
        step: counts from 1.
        state: the scheduler's state after the step, or None if it has no state machine.
        cause: why it is in that state, in words.
        phase: `prefill`, `decode`, `mixed` or `empty`.
        scheduled: what ran, in batch order.
        waiting: ids visible to vLLM's scheduler that did not start.
        held_back: ids that the holdback queue kept from it, in queue order.
        hidden: ids of running requests hidden in this step.
        held_decodes: those of them that had to wait for a KV block, which the banker must not lend
            yet; the others gave way to the other phase.
        running: ids of all running requests when the step was scheduled, oldest first.
        hold_reason: why the first request that was not admitted was held back.
        held_head: that request's id.
        decode_batch_bucket: rows of the padded decode batch, or None in other phases.
        kv_blocks_used: KV blocks in use after scheduling.
        kv_blocks_total: usable KV blocks (vLLM's null block not counted).
        kv_blocks: the block ids that each running request holds, in the order of its tokens; a
            block held by several requests is a shared prefix.
        new_text: the text that each request gained in this step.
        inputs: the padded tensors, if the model runner shows them.
        finished: ids that ended in this step, with the reason.
        preempted: ids that lost their KV blocks in this step.
        aborted: ids that were aborted since the step before.
        schedule_seconds: time spent in `schedule()`.
        model_seconds: time from there until the tokens were back.
    """

    step: int
    state: str | None
    cause: str | None
    phase: str
    scheduled: tuple[Scheduled, ...]
    waiting: tuple[str, ...]
    held_back: tuple[str, ...]
    hidden: tuple[str, ...]
    running: tuple[str, ...]
    num_waiting: int
    num_held_back: int
    hold_reason: str | None
    held_head: str | None
    decode_batch_bucket: int | None
    kv_blocks_used: int
    kv_blocks_total: int
    kv_blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    held_decodes: tuple[str, ...] = ()
    new_text: tuple[tuple[str, str], ...] = ()
    inputs: StepInputs | None = None
    finished: tuple[tuple[str, str], ...] = ()
    preempted: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    schedule_seconds: float = 0.0
    model_seconds: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Actual tokens of the step."""
        return sum(s.num_tokens for s in self.scheduled)

    @property
    def num_padded_tokens(self) -> int:
        """Tokens of the step's tensors: sequence padding of prefills, batch padding of decodes."""
        in_rows = sum(s.num_padded_tokens for s in self.scheduled)
        empty_rows = 0
        if self.decode_batch_bucket is not None:
            empty_rows = self.decode_batch_bucket - len(self.scheduled)
        return in_rows + empty_rows

    @property
    def kv_blocks_free(self) -> int:
        """KV blocks that nobody uses."""
        return self.kv_blocks_total - self.kv_blocks_used

    @property
    def shape(self) -> tuple[str, int] | tuple[str, int, int] | None:
        """The tensor shape that a static-shape device needs a graph for, or None if empty.

        `("prefill", tokens)` or `("decode", sequences)`; for a mixed batch `("mixed", tokens,
        sequences)`.
        """
        if self.phase == EMPTY:
            return None
        if self.phase == DECODE:
            return (DECODE, self.decode_batch_bucket or len(self.scheduled))
        if self.phase == PREFILL and len(self.scheduled) == 1:
            return (PREFILL, self.num_padded_tokens)
        return (self.phase, self.num_padded_tokens, len(self.scheduled))
