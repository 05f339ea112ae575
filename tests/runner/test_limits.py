"""What the worker refuses, when, and in which words."""

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import validate_logits_processors_parameters

from neuron_sched_lab import Lab
from neuron_sched_lab.runner.config import RunnerConfig
from neuron_sched_lab.runner.limits import REQUEST_LIMITS, check_engine


@pytest.fixture
def vllm_config(tiny_model):
    return EngineArgs(
        model=str(tiny_model), dtype="float32", max_model_len=512, block_size=32
    ).create_engine_config()


def test_the_kits_own_settings_pass(vllm_config):
    check_engine(vllm_config)


@pytest.mark.parametrize(
    ("where", "field", "value", "message"),
    [
        (None, "speculative_config", "ngram", "speculative_config: ngram is not supported"),
        (None, "kv_transfer_config", "nixl", "kv_transfer_config: nixl is not supported"),
        (None, "ec_transfer_config", "ec", "ec_transfer_config: ec is not supported"),
        ("model_config", "runner_type", "pooling", "runner: pooling is not supported"),
        ("model_config", "quantization", "awq", "quantization: awq is not supported"),
        ("model_config", "enable_prompt_embeds", True, "enable_prompt_embeds: True is not"),
        ("model_config", "return_sampling_mask", True, "return_sampling_mask: True is not"),
        ("model_config", "enable_trace_replay", True, "enable_trace_replay: True is not"),
        ("model_config", "enable_sleep_mode", True, "enable_sleep_mode: True is not"),
        ("model_config", "model", "meta-llama/Llama-3.2-1B", "is no directory; NeuronWorker"),
        ("parallel_config", "tensor_parallel_size", 2, "tensor_parallel_size: 2 is not supported"),
        ("parallel_config", "pipeline_parallel_size", 3, "pipeline_parallel_size: 3 is not"),
        ("load_config", "load_format", "dummy", "load_format: 'dummy' is not supported"),
        ("cache_config", "cache_dtype", "fp8", "kv_cache_dtype: 'fp8' is not supported"),
    ],
)
def test_refused_at_start(vllm_config, where, field, value, message):
    target = vllm_config if where is None else getattr(vllm_config, where)
    object.__setattr__(target, field, value)
    with pytest.raises(ValueError, match=message):
        check_engine(vllm_config)


def test_speculation_never_reaches_an_engine():
    with pytest.raises(ValueError, match="speculative_config"):
        Lab(speculative_config={"method": "ngram", "num_speculative_tokens": 2})


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs: 1 is not supported by NeuronWorker"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ],
)
def test_refused_per_request_and_the_engine_lives_on(sampling, message):
    with Lab() as lab:
        with pytest.raises(ValueError, match=message):
            lab.add("1997 1998 ", **sampling)
        lab.add("1997 1998 ", max_tokens=4)
        lab.run()
        assert list(lab.text.values()) == ["1999"]


def test_a_front_end_in_another_process_refuses_by_the_same_name():
    """The string for `vllm serve --logits-processors`, as vLLM's front end resolves it."""
    named = ["neuron_sched_lab.runner.limits:RequestLimits"]
    assert named == [REQUEST_LIMITS]
    validate_logits_processors_parameters(named, SamplingParams())
    with pytest.raises(VLLMValidationError, match="prompt_logprobs: 1 is not supported"):
        validate_logits_processors_parameters(named, SamplingParams(prompt_logprobs=1))


def test_runner_config_names_a_wrong_key():
    with pytest.raises(ValueError, match="'devise' is no known key; did you mean 'device'"):
        RunnerConfig.from_dict({"devise": "cpu"})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"device": "gpu"}, "device: 'gpu' must be one of cpu, neuron, nki-sim, auto"),
        ({"compile": 1}, "compile: 1 must be True or False"),
        ({"async_scheduling": "yes"}, "async_scheduling: 'yes' must be True or False"),
        (["cpu"], "runner_config: .* is a list; it must be a dict"),
    ],
)
def test_runner_config_values(mapping, message):
    with pytest.raises(ValueError, match=message):
        RunnerConfig.from_dict(mapping)


def test_too_little_memory_is_named(monkeypatch):
    import psutil

    class Memory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    # vLLM takes the setting from there, and `make` sets it.
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    with pytest.raises(ValueError, match=r"kv_cache_memory_bytes: not set.*need .* bytes of 1,000"):
        Lab(kv_cache_memory_bytes=None)
