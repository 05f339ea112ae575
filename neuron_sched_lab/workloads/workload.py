"""Workload: who asks for how many tokens, and when.

    workload = Workload.read("AzureLLMInferenceTrace_conv.csv").scale(2).head(1000)
    workload.write("mine.jsonl")

A workload is plain data, so that a simulation and a live replay get the same one. Generators are
in `generators`, readers of public trace formats in `file_formats`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from . import file_formats
from .request import (
    FILLER_TOKEN,
    FIRST_HASH_TOKEN,
    FIRST_UNIQUE_TOKEN,
    HASH_BLOCK_TOKENS,
    WorkloadRequest,
    check_requests,
)


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
        check_requests(self.name, self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[WorkloadRequest]:
        return iter(self.requests)

    @classmethod
    def read(cls, path: str | Path, file_format: str = "auto", **options: Any) -> Workload:
        """Read a trace file; see `file_formats.read`."""
        return cls(**file_formats.read(path, file_format, **options))

    def write(self, path: str | Path) -> None:
        """Write the kit's own JSON lines; see `file_formats.write`."""
        file_formats.write(
            path,
            self.requests,
            name=self.name,
            num_skipped=self.num_skipped,
            hash_block_tokens=self.hash_block_tokens,
        )

    # Changed copies

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

    # Figures and contents

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


def check_workload(workload: object) -> None:
    """Refuse anything but a Workload.

    Raises:
        ValueError: names what was given.
    """
    if not isinstance(workload, Workload):
        raise ValueError(
            f"workload: {workload!r} is no Workload; give Workload.read(file) or one of "
            f"workloads.generators"
        )
