"""The environment variables that a Lab needs, set before vLLM is imported.

vLLM reads its variables when it is imported and when its first engine starts. What the user has
set is left alone, except where a Lab could not work otherwise.
"""

from __future__ import annotations

import logging
import os

REQUIRED = {
    # The engine runs in this process, so that Python can look into its queues between two steps.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # A request keeps the id that the user gave it; vLLM would append a random suffix.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
}

DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    # vLLM's CPU worker warns about NUMA from C++, past Python's logging.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Models come from a directory; nothing is looked up on a hub.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # With more threads than free cores OpenMP spins: runs were seen to take ten times as long.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_environment() -> None:
    """Set the variables above."""
    os.environ.update(REQUIRED)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # If a scheduler was imported before, vLLM was too, and has set up its logger already.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
