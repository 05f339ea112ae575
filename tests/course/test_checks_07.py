"""The checks of lesson 07 catch what learners get wrong in padded inputs, and name the rule."""

from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

from neuron_sched_lab.course.checks import NotSolvedError
from neuron_sched_lab.course.checks.padded_inputs import (
    check_prefill_inputs,
    compare_decode_inputs,
    compare_prefill_inputs,
    compare_slots,
    get_slots,
)
from neuron_sched_lab.course.checks.result import NOT_RIGHT, NOT_SOLVED
from neuron_sched_lab.course.exercises import read_master
from neuron_sched_lab.runner.inputs import compute_slots, pad_decode, pad_prefill
from scripts.freeze_notebooks import NOTEBOOKS


def one_block_too_early(block_table, positions, block_size):
    """Takes a full block's next token for one of the same block."""
    blocks = block_table[np.maximum(positions - 1, 0) // block_size]
    return blocks * block_size + positions % block_size


def no_block_table(block_table, positions, block_size):
    return positions


def slot_0(**arguments):
    inputs = pad_prefill(**arguments)
    return inputs._replace(slot_mapping=np.maximum(inputs.slot_mapping, 0))


def slots_of_padded_positions(*, block_table, block_size, **arguments):
    inputs = pad_prefill(block_table=block_table, block_size=block_size, **arguments)
    slots = get_slots(block_table, inputs.positions, block_size)
    return inputs._replace(slot_mapping=slots)


def prefill_one_too_far(**arguments):
    inputs = pad_prefill(**arguments)
    return inputs._replace(positions=inputs.positions + 1)


def restarts_at_0(**arguments):
    inputs = pad_prefill(**arguments)
    return inputs._replace(positions=inputs.positions - inputs.prior_tokens)


def positions_run_on(**arguments):
    inputs = pad_prefill(**arguments)
    positions = inputs.positions[0] + np.arange(len(inputs.positions), dtype=np.int32)
    return inputs._replace(positions=positions)


def padded_length(**arguments):
    inputs = pad_prefill(**arguments)
    return inputs._replace(num_tokens=np.array([len(inputs.input_ids)], dtype=np.int32))


def vllms_table(**arguments):
    return pad_prefill(**arguments)._replace(block_table=arguments["block_table"])


def decode_slot_0(**arguments):
    inputs = pad_decode(**arguments)
    return inputs._replace(slot_mapping=np.maximum(inputs.slot_mapping, 0))


def decode_one_too_far(**arguments):
    inputs = pad_decode(**arguments)
    return inputs._replace(positions=inputs.positions + 1)


def counts_itself(**arguments):
    """The token's own slot is taken for context: the kernel would see it twice."""
    inputs = pad_decode(**arguments)
    return inputs._replace(context_lens=inputs.context_lens + 1)


def slots_of_padded_rows(*, block_size, **arguments):
    inputs = pad_decode(block_size=block_size, **arguments)
    blocks = inputs.block_tables[np.arange(len(inputs.positions)), inputs.positions // block_size]
    return inputs._replace(slot_mapping=compute_slots(blocks, inputs.positions, block_size))


def empty_tables(**arguments):
    inputs = pad_decode(**arguments)
    tables = inputs.block_tables.copy()
    tables[len(arguments["token_ids"]) :] = -1
    return inputs._replace(block_tables=tables)


SLOTS, PREFILL, DECODE = compare_slots, compare_prefill_inputs, compare_decode_inputs
WRONG = [
    (SLOTS, one_block_too_early, "you returned [318, 319, 256, 577]", ["slot"]),
    (SLOTS, no_block_table, "you returned [62, 63, 64, 65]", ["slot"]),
    (PREFILL, slot_0, "slot_mapping[200] is 0 in your result, -1", ["padding leaves no trace"]),
    (
        PREFILL,
        slots_of_padded_positions,
        "slot_mapping[200] is 215 in your result, -1",
        ["padding leaves no trace"],
    ),
    (PREFILL, prefill_one_too_far, "positions[0] is 1 in your result, 0", ["positions"]),
    (PREFILL, restarts_at_0, "case 2: restarts_at_0(", ["positions"]),
    (PREFILL, positions_run_on, "positions[200] is 200 in your result, 199", ["no new positions"]),
    (PREFILL, padded_length, "num_tokens[0] is 256 in your result, 200", ["the real length"]),
    (PREFILL, vllms_table, "block_table[13] is 0 in your result, -1", ["unused blocks"]),
    (DECODE, decode_slot_0, "slot_mapping[3] is 0 in your result", ["padding leaves no trace"]),
    (
        DECODE,
        decode_one_too_far,
        "positions[0] is 6 in your result, 5",
        ["positions", "padding has no context"],
    ),
    (
        DECODE,
        counts_itself,
        "context_lens[0] is 6 in your result, 5",
        ["positions", "padding has no context"],
    ),
    (DECODE, slots_of_padded_rows, "slot_mapping[3] is 48 in", ["padding leaves no trace"]),
    (DECODE, empty_tables, "block_tables[3][0] is -1 in your", ["padding names real blocks"]),
]


@pytest.mark.parametrize(
    ("compare", "yours", "words", "rules"), WRONG, ids=[case[1].__name__ for case in WRONG]
)
def test_wrong_inputs_are_told_the_place_and_the_rule(compare, yours, words, rules):
    result = compare(yours)
    assert result.status == NOT_RIGHT
    assert words in result.message
    assert [d.split(" (")[0] for d in result.details] == [f"rule broken: {rule}" for rule in rules]


@pytest.mark.parametrize(
    ("compare", "right"), [(SLOTS, get_slots), (PREFILL, pad_prefill), (DECODE, pad_decode)]
)
def test_right_inputs_are_solved(compare, right):
    assert compare(right).solved


def test_64_bit_arrays_are_told_by_name():
    def wide(**arguments):
        inputs = pad_prefill(**arguments)
        return inputs._replace(positions=inputs.positions.astype(np.int64))

    assert "positions is int64; every array must be int32" in compare_prefill_inputs(wide).message


def test_another_tuple_is_told_by_name():
    result = compare_decode_inputs(lambda **arguments: pad_decode(**arguments)._asdict())
    assert result.message == "you returned a dict; return a DecodeInputs"


def test_a_skeleton_is_not_solved_yet(monkeypatch):
    def skeleton(**arguments):
        raise NotImplementedError

    assert compare_prefill_inputs(skeleton).status == NOT_SOLVED
    monkeypatch.setenv("NSL_REQUIRE_SOLVED", "1")
    with pytest.raises(NotSolvedError):
        check_prefill_inputs(skeleton)


def test_a_forgotten_return_is_told_and_no_rule_with_it():
    result = compare_prefill_inputs(lambda **arguments: None)
    assert "you returned None, the packaged function returns a PrefillInputs" in result.message
    assert result.details == ()


MASTER = read_master(NOTEBOOKS / "exercises" / "07_runner.py")


def run_check(exercise, old="", new="", **names):
    """Run the notebook's check of an exercise's solution, with `old` replaced by `new`."""
    cells = nbformat.read(NOTEBOOKS / "07_runner.ipynb", as_version=4).cells
    tag = f"check:{exercise}"
    (check,) = (c.source for c in cells if tag in c.metadata.get("tags", ()))
    head, verb, last = check.rpartition("\ncheck_")
    solution = MASTER[exercise].solution
    assert old in solution
    sources = (
        "from neuron_sched_lab.course.checks import ValueRule, check_function, check_value",
        solution.replace(old, new),
        f"{head}\nresult = {verb.strip()}{last}",
    )
    names |= {"np": np, "get_slots": get_slots}
    for source in sources:
        exec(compile(source, "cell", "exec"), names)  # noqa: S102 (the project's own notebook)
    return names["result"]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("return None", "return 'r0', 0", "nobody's"),
        ("request_id, blocks.index", "'r0', blocks.index", "whose"),
        ("blocks.index(block) * block_size", "block * block_size", "place"),
    ],
)
def test_a_wrong_owner_is_told_the_rule(old, new, rule):
    assert run_check("owner").solved
    result = run_check("owner", old, new)
    assert "it must return" in result.message
    assert f"rule broken: {rule} (" in result.details[0]


def test_a_detector_that_counts_minus_1_is_told():
    def record(step, slots, finished=()):
        inputs = SimpleNamespace(slot_mapping=slots)
        return SimpleNamespace(step=step, phase="decode", inputs=inputs, finished=finished)

    end = record(2, [99], ["r0"])
    names = {
        "tasks": [SimpleNamespace(num_tokens=2)],
        "served": {
            "none": (None, [record(1, [1, 2]), end]),
            "own slots": (None, [record(1, [1, 2, 2]), end]),
        },
        "faulty": [record(1, [4, 4]), end],
    }
    assert run_check("overwrite", **names).solved
    result = run_check("overwrite", "if slot != -1:", "if True:", **names)
    assert "rule broken: -1 is nowhere (" in result.details[0]
