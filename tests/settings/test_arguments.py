"""One wording for every refused argument: setting, value, rule, fix."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from neuron_sched_lab.settings.arguments import (
    INTS,
    OPTIONAL,
    argument_names,
    check_bools,
    check_int,
    check_ints,
    check_limits,
    check_names,
    check_neuron_config,
    check_positive,
    check_setting,
    is_number,
    refusal,
    vllm_errors,
)


def test_a_refusal_names_setting_value_rule_and_fix():
    error = refusal("max_num_seqs", "many", "an int", "give a number")
    assert str(error) == "max_num_seqs: 'many' must be an int; give a number"


def test_a_long_value_is_cut():
    assert len(str(refusal("name", "x" * 10_000, "short", "cut it"))) < 120


@pytest.mark.parametrize("value", [True, "3", 3.0, None, math.nan, [3]])
def test_an_int_is_a_plain_int(value):
    with pytest.raises(ValueError, match=r"count: .* must be an int of at least 1; give such a"):
        check_ints(count=value)


@pytest.mark.parametrize("name", sorted(INTS))
def test_every_int_setting_has_both_its_limits(name):
    least, most = INTS[name]
    check_setting(name, least)
    check_setting(name, most)
    with pytest.raises(ValueError, match=f"^{name}: {least - 1} must be an int of at least"):
        check_setting(name, least - 1)
    with pytest.raises(ValueError, match=f"^{name}: {most + 1} must be at most {most}; lower it$"):
        check_setting(name, most + 1)


@pytest.mark.parametrize("name", sorted(INTS))
def test_only_the_optional_settings_may_be_left_out(name):
    if name in OPTIONAL:
        check_setting(name, None)
    else:
        with pytest.raises(ValueError, match=f"^{name}: None must be"):
            check_setting(name, None)


def test_check_int_takes_what_lies_between_its_limits():
    check_int("block_size", 16, INTS["block_size"])


@pytest.mark.parametrize("value", [0, 1, "True", None])
def test_a_bool_is_a_bool(value):
    with pytest.raises(ValueError, match=r"must be True or False; give one of the two"):
        check_bools(fast_forward=value)
    with pytest.raises(ValueError, match=r"^async_scheduling: "):
        check_setting("async_scheduling", value)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "1", True, None])
def test_a_positive_number_is_finite_and_above_0(value):
    with pytest.raises(ValueError, match=r"^rate: .* must be above 0, a finite number"):
        check_positive(rate=value)


def test_a_number_is_an_int_or_a_float():
    assert is_number(1)
    assert is_number(1.5)
    assert not is_number(True)
    assert not is_number("1")


def test_limits_leave_each_sequence_a_token():
    sizes = {"max_num_seqs": 8, "max_model_len": 64, "block_size": 16}
    check_limits(max_num_batched_tokens=8, **sizes)
    with pytest.raises(ValueError, match="max_num_batched_tokens: 7 must be at least max_num_seqs"):
        check_limits(max_num_batched_tokens=7, **sizes)


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"max_num_seq: Lab\(\) has no .* mean 'max_num_seqs'\?"):
        check_names(["max_num_seq"], ["max_num_seqs", "block_size"], "Lab")
    with pytest.raises(ValueError, match=r"xyz: Lab\(\) has no such setting; help\(Lab\) lists"):
        check_names(["xyz"], ["max_num_seqs"], "Lab")


def test_argument_names_leaves_out_the_collecting_ones():
    def function(a, *rest, b=1, **more): ...

    assert argument_names(function) == ["a", "b"]


def test_a_neuron_config_is_a_dict_or_none():
    check_neuron_config(None)
    check_neuron_config({})
    with pytest.raises(ValueError, match=r"neuron_config: 'banker' must be a dict"):
        check_neuron_config("banker")


def test_a_refusal_of_the_allocator_becomes_one_line():
    with (
        pytest.raises(ValueError, match=r"blocks = 9: together they do not fit"),
        vllm_errors(blocks=9),
    ):
        raise MemoryError
    with pytest.raises(RuntimeError, match="another"), vllm_errors(blocks=9):
        raise RuntimeError("another")


def test_the_checks_load_neither_vllm_nor_torch():
    code = (
        "import sys, neuron_sched_lab.settings.arguments as a\n"
        "a.check_setting('max_num_seqs', 4)\n"
        "print(sorted({'vllm', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
