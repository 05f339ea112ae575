# ruff: noqa: F811
"""Exercises of 07_runner.ipynb: what the learner finds, and what solves it."""

import numpy as np

from neuron_sched_lab.runner.inputs import DecodeInputs, PrefillInputs, to_kernel_block_table


def fill_up(array, size, value):
    padded = np.full((size, *np.shape(array)[1:]), value, dtype=np.int32)
    padded[: len(array)] = array
    return padded


# %% exercise: slots
# %% skeleton
def my_get_slots(block_table, positions, block_size):
    """Return the cache slot of each position of one request, as an array."""
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_get_slots(block_table, positions, block_size):
    """Return the cache slot of each position of one request, as an array."""
    blocks = block_table[positions // block_size]
    return blocks * block_size + positions % block_size

# %% exercise: prefill
# %% skeleton
def my_pad_prefill(token_ids, block_table, *, num_computed_tokens, num_padded_tokens, block_size):
    """Return the inputs of one chunk of one prompt, padded to num_padded_tokens."""
    raise NotImplementedError  # positions and slots of the real tokens, then all filled up
# %% solution
def my_pad_prefill(token_ids, block_table, *, num_computed_tokens, num_padded_tokens, block_size):
    """Return the inputs of one chunk of one prompt, padded to num_padded_tokens."""
    num_tokens = len(token_ids)
    positions = np.arange(num_computed_tokens, num_computed_tokens + num_tokens)
    slots = my_get_slots(block_table, positions, block_size)
    return PrefillInputs(
        input_ids=fill_up(token_ids, num_padded_tokens, 0),
        positions=fill_up(positions, num_padded_tokens, positions[-1]),
        slot_mapping=fill_up(slots, num_padded_tokens, -1),
        block_table=to_kernel_block_table(block_table),
        prior_tokens=fill_up([num_computed_tokens], 1, 0),
        num_tokens=fill_up([num_tokens], 1, 0),
    )

# %% exercise: decode
# %% skeleton
def my_pad_decode(token_ids, positions, block_tables, *, num_padded_seqs, block_size):
    """Return the inputs of one decode step, padded to num_padded_seqs rows."""
    raise NotImplementedError  # slots: row i has its own block table, block_tables[i]
# %% solution
def my_pad_decode(token_ids, positions, block_tables, *, num_padded_seqs, block_size):
    """Return the inputs of one decode step, padded to num_padded_seqs rows."""
    blocks = block_tables[np.arange(len(positions)), positions // block_size]
    slots = blocks * block_size + positions % block_size
    tables = to_kernel_block_table(block_tables)
    return DecodeInputs(
        input_ids=fill_up(token_ids, num_padded_seqs, 0),
        positions=fill_up(positions, num_padded_seqs, 0),
        slot_mapping=fill_up(slots, num_padded_seqs, -1),
        block_tables=fill_up(tables, num_padded_seqs, tables[0]),
        context_lens=fill_up(positions, num_padded_seqs, 0),
    )

# %% exercise: by_hand
# %% skeleton
# [slot of the first token, slot of the last real token, position of the padding, number of -1]
MY_NUMBERS = None
# %% solution
# [slot of the first token, slot of the last real token, position of the padding, number of -1]
MY_NUMBERS = [152, 91, 59, 12]

# %% exercise: owner
# %% skeleton
def my_find_owner(slot, tables, block_size):
    """Return (request id, position) of the token in `slot`, or None if the slot is nobody's.

    tables: the blocks of each request, in order: {"r0": [4, 9], "r1": [2]}.
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_find_owner(slot, tables, block_size):
    """Return (request id, position) of the token in `slot`, or None if the slot is nobody's.

    tables: the blocks of each request, in order: {"r0": [4, 9], "r1": [2]}.
    """
    block, offset = divmod(slot, block_size)
    for request_id, blocks in tables.items():
        if block in blocks:
            return request_id, blocks.index(block) * block_size + offset
    return None

# %% exercise: overwrite
# %% skeleton
def my_find_overwrite(slot_mappings):
    """Return (step, slot) of the first slot that is written a second time, or None.

    slot_mappings: for each step, beginning with step 1, the slots that it writes; -1 writes none.
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_find_overwrite(slot_mappings):
    """Return (step, slot) of the first slot that is written a second time, or None.

    slot_mappings: for each step, beginning with step 1, the slots that it writes; -1 writes none.
    """
    written = set()
    for step, slots in enumerate(slot_mappings, start=1):
        for slot in slots:
            if slot in written:
                return step, slot
            if slot != -1:
                written.add(slot)
    return None
