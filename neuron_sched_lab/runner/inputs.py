"""The padding rules: from scheduled tokens to tensors of a compiled shape.

Pure functions over numpy arrays. The counts, actual and padded, come from the SchedulerOutput;
nothing is recomputed here. A token's slot in the paged cache is

    block_number * block_size + position % block_size

Source: the seed, "Model Runner Integration".
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

NULL_BLOCK = 0
"""vLLM's placeholder block; in its tables 0 means "unused"."""

UNUSED_BLOCK = -1
"""What the attention kernels take for "unused"."""

PADDING_SLOT = -1
"""Slot of a padding token: nothing is written."""

PADDING_TOKEN = 0

NO_ADAPTER = -1
"""The adapter slot of a token that uses no adapter; padding uses none."""

Int32Array: TypeAlias = NDArray[np.int32]


class PrefillInputs(NamedTuple):
    """One chunk of one prompt, padded to a bucket; the inputs of a prefill graph, all int32.

    Attributes:
        input_ids: [bucket].
        positions: [bucket].
        slot_mapping: [bucket].
        block_table: [max_blocks].
        prior_tokens: [1], tokens of the request already in the cache.
        num_tokens: [1], real tokens of the chunk; the last of them is the one to sample after.
        adapter_slots: [1], of the request's LoRA adapter; None in an engine without LoRA.
    """

    input_ids: Int32Array
    positions: Int32Array
    slot_mapping: Int32Array
    block_table: Int32Array
    prior_tokens: Int32Array
    num_tokens: Int32Array
    adapter_slots: Int32Array | None = None


class DecodeInputs(NamedTuple):
    """One token of each request, the batch padded to a bucket; all int32.

    Attributes:
        input_ids: [bucket].
        positions: [bucket].
        slot_mapping: [bucket].
        block_tables: [bucket, max_blocks].
        context_lens: [bucket], tokens in the cache before this one.
        adapter_slots: [bucket], of each request's LoRA adapter; None in an engine without LoRA.
    """

    input_ids: Int32Array
    positions: Int32Array
    slot_mapping: Int32Array
    block_tables: Int32Array
    context_lens: Int32Array
    adapter_slots: Int32Array | None = None


def compute_slots(block_numbers: Int32Array, positions: Int32Array, block_size: int) -> Int32Array:
    """Return the cache slots of tokens, given the block that holds each."""
    return block_numbers * block_size + positions % block_size


def to_kernel_block_table(block_table: Int32Array) -> Int32Array:
    """Rewrite vLLM's null block to the kernels' -1."""
    return np.where(block_table == NULL_BLOCK, np.int32(UNUSED_BLOCK), block_table)


def pad_prefill(
    token_ids: Int32Array,
    block_table: Int32Array,
    *,
    num_computed_tokens: int,
    num_padded_tokens: int,
    block_size: int,
) -> PrefillInputs:
    """Build the inputs of one prefill chunk.

    Padding repeats the last position, so that no position leaves the range of the real ones, and
    has slot -1, so that it leaves no trace in the cache.

    Args:
        token_ids: [num_scheduled_tokens], the chunk itself.
        block_table: [max_blocks], the request's row in vLLM's convention.
        num_computed_tokens: tokens before the chunk: earlier chunks and prefix hits.
        num_padded_tokens: the bucket.
        block_size: tokens in a block.
    """
    num_tokens = len(token_ids)
    num_padding = num_padded_tokens - num_tokens
    end = num_computed_tokens + num_tokens
    positions: Int32Array = np.arange(num_computed_tokens, end, dtype=np.int32)
    slots = compute_slots(block_table[positions // block_size], positions, block_size)
    return PrefillInputs(
        input_ids=_pad(token_ids, num_padding, PADDING_TOKEN),
        positions=_pad(positions, num_padding, int(positions[-1])),
        slot_mapping=_pad(slots, num_padding, PADDING_SLOT),
        block_table=to_kernel_block_table(block_table),
        prior_tokens=np.array([num_computed_tokens], dtype=np.int32),
        num_tokens=np.array([num_tokens], dtype=np.int32),
    )


def pad_decode(
    token_ids: Int32Array,
    positions: Int32Array,
    block_tables: Int32Array,
    *,
    num_padded_seqs: int,
    block_size: int,
) -> DecodeInputs:
    """Build the inputs of one decode step.

    A row of padding is a token at position 0 with slot -1 and nothing before it. Its block table
    is a copy of the first row's, since a kernel may load what a table names before it masks it.

    Args:
        token_ids: [num_seqs], the newest token of each request.
        positions: [num_seqs], its position; so many tokens are in the cache.
        block_tables: [num_seqs, max_blocks], in vLLM's convention.
        num_padded_seqs: the bucket.
        block_size: tokens in a block.
    """
    num_seqs = len(token_ids)
    num_padding = num_padded_seqs - num_seqs
    block_numbers = block_tables[np.arange(num_seqs), positions // block_size]
    slots = compute_slots(block_numbers, positions, block_size)
    padded_positions = _pad(positions, num_padding, 0)
    tables = to_kernel_block_table(block_tables)
    return DecodeInputs(
        input_ids=_pad(token_ids, num_padding, PADDING_TOKEN),
        positions=padded_positions,
        slot_mapping=_pad(slots, num_padding, PADDING_SLOT),
        block_tables=np.concatenate([tables, tables[:1].repeat(num_padding, axis=0)]),
        context_lens=padded_positions.copy(),
    )


def pad_adapter_slots(slots: Int32Array, num_padded_seqs: int) -> Int32Array:
    """Pad the adapter slots [num_seqs] of a decode batch: a row of padding uses no adapter."""
    return _pad(slots, num_padded_seqs - len(slots), NO_ADAPTER)


def _pad(array: Int32Array, num_padding: int, value: int) -> Int32Array:
    padded: Int32Array = np.full(len(array) + num_padding, value, dtype=np.int32)
    padded[: len(array)] = array
    return padded
