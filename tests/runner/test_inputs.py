"""The padding rules, on the worked examples of the seed."""

import numpy as np
import pytest

from neuron_sched_lab.runner.inputs import (
    compute_slots,
    pad_decode,
    pad_prefill,
    to_kernel_block_table,
)


def table(*block_ids, size=16):
    return np.array(block_ids + (0,) * (size - len(block_ids)), dtype=np.int32)


def test_200_tokens_padded_to_256_with_slots_from_16():
    """The seed's prefill: blocks 1 to 13 of 16 tokens."""
    tokens = np.arange(1000, 1200, dtype=np.int32)
    inputs = pad_prefill(
        tokens,
        table(*range(1, 14)),
        num_computed_tokens=0,
        num_padded_tokens=256,
        block_size=16,
    )
    assert inputs.input_ids.tolist() == [*range(1000, 1200), *[0] * 56]
    assert inputs.positions.tolist() == [*range(200), *[199] * 56]
    assert inputs.slot_mapping.tolist() == [*range(16, 216), *[-1] * 56]
    assert inputs.block_table.tolist() == [*range(1, 14), -1, -1, -1]
    assert inputs.prior_tokens.tolist() == [0]
    assert inputs.num_tokens.tolist() == [200]


def test_a_later_chunk_goes_on_where_the_last_one_ended():
    inputs = pad_prefill(
        np.arange(40, dtype=np.int32),
        table(5, 9, 2, 7, 4, 6),
        num_computed_tokens=52,
        num_padded_tokens=64,
        block_size=16,
    )
    assert inputs.positions.tolist() == [*range(52, 92), *[91] * 24]
    assert inputs.slot_mapping[:4].tolist() == [7 * 16 + 4 + i for i in range(4)]
    assert inputs.slot_mapping[12:28].tolist() == [4 * 16 + i for i in range(16)]
    assert inputs.prior_tokens.tolist() == [52]


def test_a_chunk_of_the_buckets_size_has_no_padding():
    inputs = pad_prefill(
        np.arange(32, dtype=np.int32),
        table(3, 1),
        num_computed_tokens=0,
        num_padded_tokens=32,
        block_size=16,
    )
    assert inputs.slot_mapping.tolist() == [*range(48, 64), *range(16, 32)]
    assert len(inputs.input_ids) == 32


def test_3_decodes_padded_to_4():
    inputs = pad_decode(
        np.array([11, 12, 13], dtype=np.int32),
        np.array([5, 31, 16], dtype=np.int32),
        np.stack([table(3, size=2), table(6, 7, size=2), table(8, 9, size=2)]),
        num_padded_seqs=4,
        block_size=16,
    )
    assert inputs.input_ids.tolist() == [11, 12, 13, 0]
    assert inputs.positions.tolist() == [5, 31, 16, 0]
    assert inputs.slot_mapping.tolist() == [3 * 16 + 5, 7 * 16 + 15, 9 * 16, -1]
    assert inputs.context_lens.tolist() == [5, 31, 16, 0]
    assert inputs.block_tables.tolist() == [[3, -1], [6, 7], [8, 9], [3, -1]]
    assert inputs.adapter_slots is None
    assert all(array.dtype == np.int32 for array in inputs[:-1])


def test_positions_62_to_65_cross_a_block_boundary():
    """Four decode steps of one request in blocks of 64."""
    block_numbers = np.array([4, 4, 9, 9])
    assert compute_slots(block_numbers, np.arange(62, 66), 64).tolist() == [
        4 * 64 + 62,
        4 * 64 + 63,
        9 * 64,
        9 * 64 + 1,
    ]


@pytest.mark.parametrize("position", range(62, 66))
def test_a_decode_step_finds_its_block(position):
    inputs = pad_decode(
        np.array([1], dtype=np.int32),
        np.array([position], dtype=np.int32),
        table(4, 9, size=2)[None],
        num_padded_seqs=1,
        block_size=64,
    )
    expected = 4 * 64 + position if position < 64 else 9 * 64 + position - 64
    assert inputs.slot_mapping.tolist() == [expected]


def test_the_null_block_becomes_minus_one():
    assert to_kernel_block_table(table(7, 3, size=4)).tolist() == [7, 3, -1, -1]
