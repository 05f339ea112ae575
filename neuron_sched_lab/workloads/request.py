"""WorkloadRequest: one request of a workload, before it meets an engine."""

from __future__ import annotations

from dataclasses import dataclass

HASH_BLOCK_TOKENS = 512
"""Tokens that one prefix hash id stands for in Mooncake's traces."""

FILLER_TOKEN = 1
"""What a prompt consists of where only its length is known, and what a simulation answers."""

FIRST_UNIQUE_TOKEN = 1 << 40
"""Beyond any vocabulary: marks a prompt that shares its prefix with nobody."""

FIRST_HASH_TOKEN = 1 << 48
"""Beyond those: stands for the tokens of a hashed block."""


@dataclass(frozen=True)
class WorkloadRequest:
    """One request, before it meets an engine.

    Attributes:
        request_id: unique in its workload.
        arrival_seconds: when it arrives, from the workload's start; if `after` is set, from the
            moment at which that request ended.
        num_prompt_tokens: prompt length, at least 1.
        num_output_tokens: tokens it generates, at least 1 (less where `max_model_len` ends it).
        after: id of the request that it waits for: the last answer of the same user.
        prefix_hash_ids: one id for each `hash_block_tokens` tokens of the prompt; equal leading
            ids are an equal prefix.
        prompt_token_ids: the prompt itself, where it is known.
        prompt: its text, where it is known; a live replay sends it as it is.
    """

    request_id: str
    arrival_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    after: str | None = None
    prefix_hash_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    prompt: str | None = None


def check_requests(name: str, requests: tuple[WorkloadRequest, ...]) -> None:
    """Refuse what no engine could run, naming the request."""
    seen: set[str] = set()
    last_arrival = 0.0
    for r in requests:
        where = f"workload {name!r}, request {r.request_id!r}"
        if r.request_id in seen:
            raise ValueError(f"{where}: the id stands twice; make ids unique")
        if r.num_prompt_tokens < 1 or r.num_output_tokens < 1:
            raise ValueError(
                f"{where}: {r.num_prompt_tokens} prompt and {r.num_output_tokens} output tokens; "
                f"both must be at least 1"
            )
        # Also false for NaN.
        if not 0 <= r.arrival_seconds < float("inf"):
            raise ValueError(
                f"{where}: arrival_seconds {r.arrival_seconds} must be finite and not negative"
            )
        if r.after is not None:
            if r.after not in seen:
                raise ValueError(f"{where}: waits for {r.after!r}, which does not come before it")
        elif r.arrival_seconds < last_arrival:
            raise ValueError(
                f"{where}: arrives at {r.arrival_seconds}, before its predecessor at "
                f"{last_arrival}; sort by arrival_seconds"
            )
        else:
            last_arrival = r.arrival_seconds
        if (ids := r.prompt_token_ids) is not None and len(ids) != r.num_prompt_tokens:
            raise ValueError(
                f"{where}: {len(ids)} prompt_token_ids, but num_prompt_tokens {r.num_prompt_tokens}"
            )
        seen.add(r.request_id)
