"""Refuses what the worker does not support: settings at start, requests before they are queued.

A worker cannot refuse a request once a step runs: what it raises ends the engine. But vLLM asks the
logits processors of an engine about every request before it is queued, so `RequestLimits` is a
logits processor that only refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

REQUEST_LIMITS = f"{__name__}:RequestLimits"
"""For `LLM(logits_processors=[...])` and `vllm serve --logits-processors`. The worker adds it by
itself, which reaches the front end only where that runs in the same process."""


_MUST_BE_UNSET = (
    # section of the configuration, field, the setting's name for a user, what there is instead
    ("", "speculative_config", "speculative_config", "no speculative decoding"),
    ("", "kv_transfer_config", "kv_transfer_config", "no KV connector"),
    ("", "ec_transfer_config", "ec_transfer_config", "no encoder connector"),
    ("model_config", "is_multimodal_model", "multimodal model", "text only"),
    ("model_config", "quantization", "quantization", "no quantized weights"),
    ("model_config", "enable_prompt_embeds", "enable_prompt_embeds", "prompts of tokens only"),
    ("model_config", "return_sampling_mask", "return_sampling_mask", "no sampling masks"),
    (
        "model_config",
        "enable_return_routed_experts",
        "enable_return_routed_experts",
        "no mixture of experts",
    ),
    ("model_config", "enable_trace_replay", "enable_trace_replay", "no trace replay"),
    ("model_config", "enable_sleep_mode", "enable_sleep_mode", "no release of memory"),
)

_LORA_OPTIONS_UNSET = (
    "fully_sharded_loras",
    "target_modules",
    "default_mm_loras",
    "enable_tower_connector_lora",
    "specialize_active_lora",
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
)
"""Options of LoRA which would change nothing here, or need more than a Llama on one device."""


def check_engine(vllm_config: VllmConfig) -> None:
    """Refuse what the worker does not implement.

    Raises:
        ValueError: names the setting, the value found, the rule and the fix.
    """
    model = vllm_config.model_config
    if model.runner_type == "pooling":
        raise _not_supported("runner", "pooling", "no pooling models")
    for section, field, setting, has in _MUST_BE_UNSET:
        # A version of vLLM that lacks a field cannot ask for it.
        value = getattr(getattr(vllm_config, section) if section else vllm_config, field, None)
        if value:
            raise _not_supported(setting, value, has)
    for setting in _LORA_OPTIONS_UNSET:
        if value := getattr(vllm_config.lora_config, setting, None):
            raise _not_supported(setting, value, "every projection's adapters on one device")
    for setting in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = getattr(vllm_config.parallel_config, setting)
        if size > 1:
            raise _not_supported(setting, size, "one device")
    _check_choice("load_format", vllm_config.load_config.load_format, "auto", "safetensors")
    dtype = str(model.dtype).removeprefix("torch.")
    _check_choice("kv_cache_dtype", vllm_config.cache_config.cache_dtype, "auto", dtype)
    if not Path(model.model).is_dir():
        raise ValueError(
            f"model: {model.model!r} is no directory; NeuronWorker reads a checkpoint directory; "
            f"download the checkpoint and give its path"
        )


def _not_supported(setting: str, value: object, has: str) -> ValueError:
    return ValueError(
        f"{setting}: {value} is not supported by NeuronWorker, which has {has}; leave {setting} "
        f"at its default, or use vLLM's own worker"
    )


def _check_choice(setting: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise ValueError(f"{setting}: {value!r} is not supported; choose from {choices}")


class RequestLimits(LogitsProcessor):
    """Refuses requests that the worker cannot serve; changes no logits."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check a request before it is queued.

        Raises:
            VLLMValidationError: a ValueError that ends this request only.
        """
        for name, why in (
            ("prompt_logprobs", "a prefill graph gives logits for the last token only"),
            ("thinking_token_budget", "there is no reasoning parser in the worker"),
        ):
            value = getattr(sampling_params, name)
            if value is not None:
                raise VLLMValidationError(
                    f"{name}: {value} is not supported by NeuronWorker, {why}; leave it out",
                    parameter=name,
                    value=value,
                )

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        """True: it changes nothing."""
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits as they are."""
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Nothing to track."""
