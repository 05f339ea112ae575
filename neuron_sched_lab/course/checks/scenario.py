"""Scenarios: random arrivals and aborts for a scheduler; one seed gives the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...tiny_model.tasks import below, pick

BLOCK_SIZE = 16
MAX_MODEL_LEN = 128


class Arrival(NamedTuple):
    """A request that is added before a step.

    Attributes:
        num_shared: its first tokens are a prefix that all requests have in common.
        ready_step: until this step it waits for something, as for a grammar to be compiled.
    """

    step: int
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    num_shared: int = 0
    ready_step: int = 0


class Abort(NamedTuple):
    """A request that goes away before a step, whatever it is doing then."""

    step: int
    request_id: str


@dataclass(frozen=True)
class Scenario:
    """What happens to a scheduler.

    Attributes:
        name: for messages.
        settings: for `make_scheduler`.
        arrivals: in order of step.
        aborts: in order of step.
    """

    name: str
    settings: Mapping[str, Any]
    arrivals: tuple[Arrival, ...]
    aborts: tuple[Abort, ...] = ()


def draw_scenario(
    seed: int,
    *,
    kv_pressure: bool = False,
    not_ready: bool = False,
    aborts: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Scenario:
    """Draw a scenario; the smaller `seed`, the fewer requests, so that a failure is short.

    Args:
        seed: of the draw.
        kv_pressure: the KV cache holds only one to three requests of full length.
        not_ready: some requests cannot start for a while, though there is room for them.
        aborts: some requests are aborted.
        settings: for `make_scheduler`, in place of what would be drawn.
    """
    rng = random.Random(f"scenario/{seed}")
    max_num_seqs = pick(rng, (1, 2, 3, 4))
    blocks_per_request = MAX_MODEL_LEN // BLOCK_SIZE
    longest = 3 * blocks_per_request if kv_pressure else (max_num_seqs + 1) * blocks_per_request
    num_blocks = longest + 1
    if kv_pressure:
        num_blocks -= below(rng, 2 * blocks_per_request + 1)
    max_num_batched_tokens = pick(rng, (16, 32, 48, 128))
    buckets = [b for b in (8, 16, 24, 64) if b < max_num_batched_tokens] + [max_num_batched_tokens]
    drawn = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": MAX_MODEL_LEN,
        "block_size": BLOCK_SIZE,
        "num_blocks": num_blocks,
        "enable_prefix_caching": rng.random() < 0.3,  # noqa: PLR2004
        "neuron_config": {"num_batched_tokens_buckets": buckets},
    }
    num_requests = 2 + seed // 2
    step, arrivals, gone = 1, [], []
    busy = pick(rng, (0.5, 0.8, 1.0))
    for i in range(num_requests):
        step += 0 if rng.random() < busy else below(rng, 6)
        num_prompt_tokens = 1 + below(rng, pick(rng, (8, 40, MAX_MODEL_LEN - 2)))
        if rng.random() < 0.3:  # noqa: PLR2004  (on a bucket's edge)
            num_prompt_tokens = min(pick(rng, buckets) - below(rng, 2), MAX_MODEL_LEN - 2)
        max_tokens = 1 + below(rng, pick(rng, (4, 12, 60)))
        shared = below(rng, num_prompt_tokens + 1)
        arrivals.append(Arrival(step, f"r{i}", num_prompt_tokens, max_tokens, shared))
        if aborts and rng.random() < 0.2:  # noqa: PLR2004
            gone.append(Abort(step + 1 + below(rng, 8), f"r{i}"))
    if not_ready:
        arrivals = _delay_some(arrivals, random.Random(f"not ready/{seed}"))
    return Scenario(f"scenario {seed}", {**drawn, **(settings or {})}, tuple(arrivals), tuple(gone))


def _delay_some(arrivals: list[Arrival], rng: random.Random) -> list[Arrival]:
    """Let a third of the requests wait for up to 30 steps, often longer than all others run."""
    return [
        arrival._replace(ready_step=arrival.step + 1 + below(rng, 30))
        if rng.random() < 1 / 3
        else arrival
        for arrival in arrivals
    ]
