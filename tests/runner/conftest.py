"""Sets vLLM's variables before any test module of this room imports it; checkpoints to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_sched_lab.settings.environment import prepare_environment

prepare_environment()

from neuron_sched_lab.tiny_model.tasks import (  # noqa: E402
    tiny_model_path,
)
from tests.runner.checkpoints import save_random_llama  # noqa: E402


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return tiny_model_path()


@pytest.fixture(scope="session")
def random_gqa1(tmp_path_factory) -> Path:
    """4 query heads, 4 KV heads of 32, untied head, sharded."""
    return save_random_llama(
        tmp_path_factory.mktemp("gqa1"), heads=4, kv_heads=4, head_dim=32, tied=False
    )


@pytest.fixture(scope="session")
def random_gqa4(tmp_path_factory) -> Path:
    """4 query heads, 1 KV head of 64, tied head, llama3 rotary scaling, sharded."""
    return save_random_llama(
        tmp_path_factory.mktemp("gqa4"),
        heads=4,
        kv_heads=1,
        head_dim=64,
        tied=True,
        rope={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    )
