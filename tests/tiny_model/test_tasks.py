"""The prompt maker: lengths, grammar, answers, and the list of verified prompts."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from neuron_sched_lab.tiny_model import tasks
from neuron_sched_lab.tiny_model.tasks import KINDS, LIMITS, MAKERS, Task

LENGTHS = [4, 5, 9, 10, 11, 12, 13, 35, 36, 37, 38, 39, 63, 64, 65, 200, 1025, 1900, 2015, 2045]
CASES = [(kind, n) for kind in KINDS for n in LENGTHS if LIMITS[kind][0] <= n <= LIMITS[kind][1]]


@pytest.mark.parametrize(("kind", "num_tokens"), CASES)
def test_prompt_has_the_length_asked_for_and_the_answer_still_fits(kind, num_tokens):
    for seed in range(5):
        task = MAKERS[kind](num_tokens, seed)
        assert task.kind == kind
        assert task.num_tokens == num_tokens == len(tasks.encode(task.prompt))
        assert num_tokens + task.max_tokens <= tasks.MAX_MODEL_LEN
        assert task == MAKERS[kind](num_tokens, seed)
        if num_tokens >= 9:  # shorter copies are often alike by chance
            assert task.prompt != MAKERS[kind](num_tokens, seed + 100).prompt


@pytest.mark.parametrize("num_tokens", [9, 10, 14, 100, 1900])
def test_recall_asks_for_a_key_that_stands_whole_in_the_prompt_once(num_tokens):
    for seed in range(20):
        task = tasks.recall(num_tokens, seed)
        body, key = task.prompt.split("?")
        found = [part for part in body.split(";") if len(part) == 4 and part[:2] == key]
        assert found == [key + task.answer]


@pytest.mark.parametrize("num_tokens", [4, 5, 100, 1025])
def test_copy_asks_for_a_text_without_a_repeated_pair_of_neighbours(num_tokens):
    task = tasks.copy(num_tokens, seed=3)
    assert task.prompt == f"|{task.answer}|"
    neighbours = list(pairwise(task.answer))
    assert len(set(neighbours)) == len(neighbours)


@pytest.mark.parametrize("num_tokens", [35, 36, 100, 2015])
def test_echo_asks_for_the_bits_at_the_end(num_tokens):
    task = tasks.echo(num_tokens, seed=3)
    assert task.prompt.endswith(f"#{task.answer}#")
    assert len(task.answer) == 32
    assert set(task.answer) == {"0", "1"}


@pytest.mark.parametrize("num_tokens", [9, 10, 100, 2033])
def test_count_goes_on_by_one_and_stays_below_ten_thousand(num_tokens):
    for seed in range(20):
        task = tasks.count(num_tokens, seed)
        # The first number may be cut short.
        numbers = [int(n) for n in (task.prompt + task.answer).split()][1:]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[-1] <= 9999


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_length_names_the_range(kind):
    shortest, longest = LIMITS[kind]
    for num_tokens in (shortest - 1, longest + 1):
        with pytest.raises(ValueError, match=f"num_tokens: {num_tokens} .* {kind}.*{shortest}"):
            MAKERS[kind](num_tokens, 0)


def test_check_looks_at_the_answer_and_its_end():
    recall = Task("recall", "ux94;?ux", "94", 9)
    assert recall.max_tokens == 3
    assert recall.check("94")
    assert recall.check("94\n")
    assert recall.check("94\n?vn")  # run on with ignore_eos
    for wrong in ("", "9", "949", "49", " 94", "\n94"):
        assert not recall.check(wrong)
    count = Task("count", "998 999 ", "1000 1001 1002", 9)
    assert count.max_tokens == 15
    assert count.check("1000 1001 1002")
    assert count.check("1000 1001 1002 1003")
    for wrong in ("", "1000 1001 100", "1000 1001 10020", "1000 1001"):
        assert not count.check(wrong)


def test_encode_names_a_character_that_is_no_token():
    assert tasks.encode(" ~\n") == [1, 3, 97, 2]
    with pytest.raises(ValueError, match="'é'"):
        tasks.encode("café")


def test_mixed_is_seeded_and_keeps_to_the_lengths():
    batch = tasks.mixed(60, lengths=(4, 40, 300), seed=1)
    assert batch == tasks.mixed(60, lengths=(4, 40, 300), seed=1)
    assert batch != tasks.mixed(60, lengths=(4, 40, 300), seed=2)
    assert {task.num_tokens for task in batch} == {4, 40, 300}
    assert {task.kind for task in batch} == set(KINDS)
    assert {task.kind for task in batch if task.num_tokens == 4} == {"copy"}
    assert "copy" not in {task.kind for task in batch if task.num_tokens == 300}


def test_mixed_names_a_length_that_no_kind_has():
    with pytest.raises(ValueError, match="lengths: no task has a prompt of 3 tokens"):
        tasks.mixed(1, lengths=(40, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_verified_list_covers_the_lengths(kind):
    found = tasks.verified(kinds=[kind])
    assert len(found) >= 20
    assert len({task.prompt for task in found}) == len(found)
    lengths = [task.num_tokens for task in found]
    assert min(lengths) <= max(9, LIMITS[kind][0])
    assert max(lengths) == (200 if kind == "copy" else 1900)


def test_verified_draws_n_of_those_that_fit():
    drawn = tasks.verified(15, min_tokens=64, max_tokens=300, seed=1)
    assert len(set(drawn)) == 15
    assert all(64 <= task.num_tokens <= 300 for task in drawn)
    assert drawn == tasks.verified(15, min_tokens=64, max_tokens=300, seed=1)
    assert drawn != tasks.verified(15, min_tokens=64, max_tokens=300, seed=2)
    with pytest.raises(ValueError, match="n: 5000 is more than"):
        tasks.verified(5000)


def test_import_loads_neither_torch_nor_vllm():
    code = (
        "import sys, neuron_sched_lab.tiny_model.tasks; "
        "sys.exit(bool({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
