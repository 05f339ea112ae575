"""Workload: who asks for how many tokens, and when.

    workload = Workload.read("AzureLLMInferenceTrace_conv.csv").scale(2).head(1000)
    workload.write("mine.jsonl")

A workload is plain data, so that a simulation and a live replay get the same one. Generators are
in `workload_generators`, readers of public trace formats in `workload_files`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

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


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Those that wait for another request (`after`) stand behind it.

    Attributes:
        name: for tables and plots.
        requests: in order of arrival.
        num_skipped: rows of the file that could not be used and were left out.
        hash_block_tokens: tokens that one of the `prefix_hash_ids` stands for.
    """

    name: str
    requests: tuple[WorkloadRequest, ...]
    num_skipped: int = 0
    hash_block_tokens: int = HASH_BLOCK_TOKENS

    def __post_init__(self) -> None:
        _check_requests(self.name, self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[WorkloadRequest]:
        return iter(self.requests)

    @classmethod
    def read(cls, path: str | Path, file_format: str = "auto", **options: Any) -> Workload:
        """Read a trace file; see `workload_files.read`."""
        from .workload_files import read

        return read(path, file_format, **options)

    def write(self, path: str | Path) -> None:
        """Write the kit's own JSON lines; see `workload_files.write`."""
        from .workload_files import write

        write(self, path)

    # Views of it

    def head(self, count: int) -> Workload:
        """Return the first `count` requests."""
        return self._with(self.requests[:count])

    def slice(self, start_seconds: float, stop_seconds: float) -> Workload:
        """Return the requests that arrive in [start, stop), the clock set to 0 at `start`.

        Raises:
            ValueError: the workload is closed-loop, so its arrivals are known only when it runs.
        """
        self._check_open_loop("slice")
        times = [r.arrival_seconds for r in self.requests]
        chosen = self.requests[bisect_left(times, start_seconds) : bisect_left(times, stop_seconds)]
        return self._with(
            replace(r, arrival_seconds=r.arrival_seconds - start_seconds) for r in chosen
        )

    def scale(self, rate: float) -> Workload:
        """Return the same requests arriving `rate` times as fast (pauses of users as well).

        Raises:
            ValueError: `rate` is not positive.
        """
        if not rate > 0:
            raise ValueError(f"rate: {rate} must be above 0; 2 means twice as many a second")
        return self._with(
            replace(r, arrival_seconds=r.arrival_seconds / rate) for r in self.requests
        )

    def time_warp(self, warp: Callable[[float], float]) -> Workload:
        """Return the same requests at the times `warp(arrival_seconds)`.

        A rush hour, for example: `lambda t: t - 300 * math.sin(t / 600)`. The pauses of users
        between two turns stay as they are.

        Raises:
            ValueError: `warp` reverses two arrivals or gives a negative time.
        """
        return self._with(
            replace(r, arrival_seconds=warp(r.arrival_seconds)) if r.after is None else r
            for r in self.requests
        )

    def fit(self, max_model_len: int) -> Workload:
        """Return what an engine of `max_model_len` can serve.

        Requests whose prompt leaves no room for an answer are dropped, with those that wait for
        them, and counted in `num_skipped`; answers are cut at `max_model_len`.
        """
        dropped: set[str] = set()
        kept = []
        for r in self.requests:
            room = max_model_len - r.num_prompt_tokens
            if room < 1 or r.after in dropped:
                dropped.add(r.request_id)
            else:
                kept.append(replace(r, num_output_tokens=min(r.num_output_tokens, room)))
        return replace(
            self, requests=tuple(kept), num_skipped=self.num_skipped + len(self) - len(kept)
        )

    def _with(self, requests: Iterable[WorkloadRequest]) -> Workload:
        return replace(self, requests=tuple(requests))

    # What it says

    @property
    def is_open_loop(self) -> bool:
        """True if no request waits for another."""
        return all(r.after is None for r in self.requests)

    def _check_open_loop(self, what: str) -> None:
        if not self.is_open_loop:
            raise ValueError(
                f"{what}: {self.name!r} is closed-loop, its requests wait for each other's "
                f"answers; use head() instead"
            )

    @property
    def requests_per_second(self) -> float:
        """Mean arrival rate, or 0 where it is not known beforehand."""
        if not self.is_open_loop or len(self) < 2:  # noqa: PLR2004  (a rate needs two arrivals)
            return 0.0
        seconds = self.requests[-1].arrival_seconds - self.requests[0].arrival_seconds
        return (len(self) - 1) / seconds if seconds > 0 else 0.0

    def describe(self) -> str:
        """Return its size, rate and lengths in one line."""
        if not self.requests:
            return f"{self.name}: no requests, {self.num_skipped} rows skipped"
        prompts = [r.num_prompt_tokens for r in self.requests]
        outputs = [r.num_output_tokens for r in self.requests]
        rate = self.requests_per_second
        pace = f"{rate:.3g} requests/s" if rate else "closed loop or all at once"
        skipped = f", {self.num_skipped} rows skipped" if self.num_skipped else ""
        return (
            f"{self.name}: {len(self)} requests, {pace}, prompts of {median(prompts):g} tokens "
            f"(longest {max(prompts)}), answers of {median(outputs):g} (longest "
            f"{max(outputs)}){skipped}"
        )

    def prompt_token_ids(self, index: int) -> list[int]:
        """Return token ids for the prompt of request `index`, for a simulation.

        They are the given ones, or made from the hash ids, or a filler whose first token nobody
        else has. Equal prefixes come out equal and others differ, which is all that a prefix
        cache sees; ids of hash blocks and fillers are not in any vocabulary.
        """
        request = self.requests[index]
        if request.prompt_token_ids is not None:
            return list(request.prompt_token_ids)
        length = request.num_prompt_tokens
        ids: list[int] = []
        for hash_id in request.prefix_hash_ids:
            if len(ids) >= length:
                break
            ids += [FIRST_HASH_TOKEN + hash_id] * self.hash_block_tokens
        del ids[length:]
        if len(ids) < length:
            ids.append(FIRST_UNIQUE_TOKEN + index)
            ids += [FILLER_TOKEN] * (length - len(ids))
        return ids


def _check_requests(name: str, requests: tuple[WorkloadRequest, ...]) -> None:
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
