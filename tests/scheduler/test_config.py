"""Every bad setting gives one error that names the setting, the value, the rule and the fix."""

import dataclasses

import pytest

from neuron_sched_lab.scheduler.config import NeuronConfig

LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 8192, "max_model_len": 131072}


def test_the_seeds_typical_configuration():
    config = NeuronConfig.from_dict(
        {
            "num_batched_tokens_buckets": [512, 1024, 2048, 4096, 8192],
            "num_seqs_buckets": [1, 2, 4, 8],
        },
        **LIMITS,
    )
    assert config.num_batched_tokens_buckets == (512, 1024, 2048, 4096, 8192)
    assert config.num_seqs_buckets == (1, 2, 4, 8)
    assert config.kv_segment_size_buckets is None
    assert config.max_consecutive_prefills is None
    assert config.max_decode_stall_tokens is None
    assert config.kv_admission == "worst_case"


def test_defaults():
    config = NeuronConfig.from_dict({}, **LIMITS)
    assert config.num_batched_tokens_buckets == (128, 256, 512, 1024, 2048, 4096, 8192)
    assert config.num_seqs_buckets == (1, 2, 4, 8)


def test_the_shorter_limit_closes_the_prefill_ladder():
    config = NeuronConfig.from_dict({}, **{**LIMITS, "max_model_len": 1000})
    assert config.num_batched_tokens_buckets == (128, 256, 512, 1000)


def test_it_is_frozen():
    config = NeuronConfig.from_dict({}, **LIMITS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_seqs_buckets = (1,)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "the list is empty"),
        ([0, 8], "0 is not positive"),
        ([-1, 8], "-1 is not positive"),
        ([True, 8], "True is a bool"),
        ([1.0, 8], "1.0 is a float"),
        (["1", 8], "'1' is a str"),
        ([1, 1, 8], "1 stands twice"),
        ([4, 2, 8], "2 follows 4; buckets must ascend"),
        ([1, 2, 4], "last bucket 4 must equal max_num_seqs = 8; append 8 or lower max_num_seqs"),
        ([1, 16], "last bucket 16 must equal max_num_seqs = 8; end the list with 8"),
        ("1,2,8", "is a str; it must be a list"),
        (8, "is a int; it must be a list"),
        (None, "is a NoneType; it must be a list"),
        ({1: 2}, "is a dict; it must be a list"),
    ],
)
def test_bad_buckets(bad, message):
    with pytest.raises(ValueError, match="num_seqs_buckets: ") as error:
        NeuronConfig.from_dict({"num_seqs_buckets": bad}, **LIMITS)
    assert message in str(error.value)


def test_the_error_of_a_short_prefill_ladder():
    with pytest.raises(ValueError) as error:
        NeuronConfig.from_dict({"num_batched_tokens_buckets": [512, 1024, 2048]}, **LIMITS)
    assert str(error.value) == (
        "num_batched_tokens_buckets: last bucket 2048 must equal "
        "min(max_num_batched_tokens, max_model_len) = 8192; "
        "append 8192 or lower max_num_batched_tokens"
    )


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("num_batched_token_buckets", "num_batched_tokens_buckets"),
        ("seqs_buckets", "num_seqs_buckets"),
        ("kv_segment_size", "kv_segment_size_buckets"),
        ("max_consecutive_prefill", "max_consecutive_prefills"),
        ("max_decode_stall", "max_decode_stall_tokens"),
        ("kv_admision", "kv_admission"),
    ],
)
def test_an_unknown_key_names_the_nearest(key, nearest):
    with pytest.raises(ValueError, match=f"'{key}' is no known key; did you mean '{nearest}'"):
        NeuronConfig.from_dict({key: [1]}, **LIMITS)


@pytest.mark.parametrize("key", [3, None, "", "<b>"])
def test_any_unknown_key_is_an_error_and_never_a_crash(key):
    with pytest.raises(ValueError, match="no known key"):
        NeuronConfig.from_dict({key: [1]}, **LIMITS)


@pytest.mark.parametrize("mapping", [[1, 2], "x", None, 5])
def test_neuron_config_must_be_a_dict(mapping):
    with pytest.raises(ValueError, match="neuron_config: .* must be a dict"):
        NeuronConfig.from_dict(mapping, **LIMITS)


def segmented(size, **changes):
    limits = {**LIMITS, "max_num_batched_tokens": size, **changes}
    return NeuronConfig.from_dict(
        {"num_batched_tokens_buckets": [size], "kv_segment_size_buckets": [size]}, **limits
    )


@pytest.mark.parametrize("size", [512, 1024, 2048, 4096])
def test_supported_segment_sizes(size):
    assert segmented(size, block_size=32).kv_segment_size_buckets == (size,)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([256], "256 must be one of"),
        ([8192], "8192 must be one of"),
        ([True], "True must be one of"),
        (["512"], "'512' must be one of"),
        ([512, 1024], "must be a list of one size"),
        ([], "must be a list of one size"),
        (512, "must be a list of one size"),
        ([512], "512 must equal the single num_batched_tokens bucket"),
    ],
)
def test_bad_segment_sizes(value, message):
    with pytest.raises(ValueError, match="kv_segment_size_buckets: ") as error:
        NeuronConfig.from_dict({"kv_segment_size_buckets": value}, **LIMITS)
    assert message in str(error.value)


def test_a_segment_is_whole_blocks():
    with pytest.raises(ValueError, match="512 must be a multiple of block_size = 48"):
        segmented(512, block_size=48)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "4", [4]])
def test_bad_max_consecutive_prefills(value):
    with pytest.raises(ValueError, match="max_consecutive_prefills: .* at least 1"):
        NeuronConfig.from_dict({"max_consecutive_prefills": value}, **LIMITS)


@pytest.mark.parametrize("value", [8191, 0, -1, True, 9000.0, "9000", [9000]])
def test_bad_max_decode_stall_tokens(value):
    with pytest.raises(ValueError, match="max_decode_stall_tokens: .* at least the last bucket"):
        NeuronConfig.from_dict({"max_decode_stall_tokens": value}, **LIMITS)


def test_a_stall_of_one_full_chunk_is_the_least_that_can_be_kept():
    config = NeuronConfig.from_dict({"max_decode_stall_tokens": 8192}, **LIMITS)
    assert config.max_decode_stall_tokens == 8192


@pytest.mark.parametrize("value", ["worst_case", "reservation", "banker"])
def test_kv_admission(value):
    assert NeuronConfig.from_dict({"kv_admission": value}, **LIMITS).kv_admission == value


@pytest.mark.parametrize("value", ["Banker", "", None, True, ["banker"], 3])
def test_bad_kv_admission(value):
    with pytest.raises(ValueError, match="kv_admission: .* must be one of .'worst_case', 'reserv"):
        NeuronConfig.from_dict({"kv_admission": value}, **LIMITS)
