"""RunnerConfig: the settings of the worker, read from vLLM's `additional_config`.

    LLM(..., worker_cls="neuron_sched_lab.runner.NeuronWorker",
        additional_config={"runner_config": {"device": "cpu", "async_scheduling": True}})

It stands beside `neuron_config`, which belongs to the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DEVICES = ("cpu", "neuron", "nki-sim", "auto")


@dataclass(frozen=True)
class RunnerConfig:
    """Validated settings. Build it with `from_dict` or `from_vllm_config`, not directly.

    Attributes:
        device: where the model runs: "cpu"; "neuron", a Trn2; "nki-sim", the NKI kernels on the
            CPU; "auto", neuron where one is present, else cpu.
        compile: on the CPU, whether graphs are compiled with inductor, which takes seconds for
            each bucket. On neuron they always are.
        async_scheduling: whether the engine schedules the next step before the last one's tokens
            are back. Needs a scheduler class for it, such as NeuronAsyncScheduler.
    """

    device: str = "cpu"
    compile: bool = False
    async_scheduling: bool = False

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> RunnerConfig:
        """Validate `runner_config`; every key is optional.

        Raises:
            ValueError: names the setting, the value found, the rule and the fix.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(
                f"runner_config: {mapping!r} is a {type(mapping).__name__}; it must be a dict"
            )
        known = [field.name for field in fields(cls)]
        for key in mapping:
            if key not in known:
                nearest = get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
                raise ValueError(
                    f"runner_config: {key!r} is no known key; did you mean {nearest!r}? "
                    f"(known: {', '.join(known)})"
                )
        config = cls(**mapping)
        if config.device not in DEVICES:
            raise ValueError(f"device: {config.device!r} must be one of {', '.join(DEVICES)}")
        for name in ("compile", "async_scheduling"):
            value = getattr(config, name)
            if not isinstance(value, bool):
                raise ValueError(f"{name}: {value!r} must be True or False")
        return config

    @classmethod
    def from_vllm_config(cls, vllm_config: VllmConfig) -> RunnerConfig:
        """Read and validate `vllm_config.additional_config["runner_config"]`."""
        return cls.from_dict(vllm_config.additional_config.get("runner_config") or {})
