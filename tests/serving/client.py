"""Streaming clients of the server: patient ones, ones that hang up, and one that reads slowly."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.server import MODEL

REQUEST_SECONDS = 900
"""After which a request counts as lost."""


class End(str, Enum):
    """How a request ended, as its client saw it."""

    ANSWER = "full answer"
    ERROR = "client-visible error"
    HUNG_UP = "hung up"
    LOST = "lost"


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        request_id: the server is told, and its log names it.
        body: of the request, beyond the model and `stream`.
        hang_up_after: streamed pieces after which the client closes the connection; 0 does so
            before the first; None never.
        hang_up_seconds: with hang_up_after 0, when.
    """

    request_id: str
    body: dict[str, Any]
    hang_up_after: int | None = None
    hang_up_seconds: float = 0.0


@dataclass
class Outcome:
    """What became of a Job.

    Attributes:
        text: received so far.
        finish_reason: the server's: "stop" or "length" for a full answer.
        error: status and message, or the connection's.
        num_pieces: streamed events with text.
    """

    job: Job
    end: End = End.LOST
    text: str = ""
    finish_reason: str | None = None
    error: str = ""
    num_pieces: int = field(default=0)


def open_session(**options: Any) -> aiohttp.ClientSession:
    """Return a session that opens as many connections as it is asked for."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, **options),
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
    )


async def run_job(
    session: aiohttp.ClientSession,
    url: str,
    job: Job,
    *,
    on_first_piece: Callable[[], Awaitable[object]] | None = None,
) -> Outcome:
    """Send a request and read its stream to the end, or hang up; never raises.

    Args:
        on_first_piece: awaited before the second piece is read.
    """
    outcome = Outcome(job)
    reading = _read(session, url, outcome, on_first_piece)
    try:
        if job.hang_up_after == 0:
            # Cancelling closes the connection wherever the request has got to.
            await asyncio.wait_for(reading, job.hang_up_seconds)
        else:
            await reading
    except (TimeoutError, asyncio.TimeoutError):
        outcome.end = End.HUNG_UP if job.hang_up_after == 0 else End.LOST
    except (aiohttp.ClientError, OSError) as error:
        outcome.end, outcome.error = End.ERROR, f"{type(error).__name__}: {error}"
    return outcome


async def _read(
    session: aiohttp.ClientSession,
    url: str,
    outcome: Outcome,
    on_first_piece: Callable[[], Awaitable[object]] | None,
) -> None:
    job = outcome.job
    body = {"model": MODEL, "stream": True, "temperature": 0, **job.body}
    headers = {"X-Request-Id": job.request_id}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
        if response.status != 200:
            outcome.end = End.ERROR
            outcome.error = f"{response.status}: {await response.text()}"
            return
        async for event in _events(response):
            if "error" in event:
                outcome.end, outcome.error = End.ERROR, f"in the stream: {event['error']}"
                return
            for choice in event["choices"]:
                outcome.text += choice["text"]
                outcome.num_pieces += 1
                outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason
            if outcome.num_pieces == job.hang_up_after and not outcome.finish_reason:
                outcome.end = End.HUNG_UP
                return
            if on_first_piece is not None and outcome.num_pieces == 1:
                await on_first_piece()
        if outcome.finish_reason in {"stop", "length"}:
            outcome.end = End.ANSWER
        else:
            outcome.end = End.ERROR
            outcome.error = f"the stream ended with finish_reason {outcome.finish_reason}"


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream; the last one is "[DONE]"."""
    async for line in response.content:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        if data:
            yield json.loads(data)


@dataclass(frozen=True)
class Load:
    """What the server says it holds."""

    running: float
    waiting: float
    kv_usage: float

    def __str__(self) -> str:
        return f"running {self.running:g}, waiting {self.waiting:g}, KV {self.kv_usage:.1%}"


async def get_samples(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return /metrics: the sum of each sample over its labels, and each with its labels.

    The key of the latter is `name{label="value",...}` without `engine` and `model_name`.
    """
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
            labels = {k: v for k, v in sample.labels.items() if k not in {"engine", "model_name"}}
            if labels:
                inner = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
                samples[f"{sample.name}{{{inner}}}"] = sample.value
    return samples


async def get_load(session: aiohttp.ClientSession, url: str, *, may_be_new: bool = False) -> Load:
    """Return the three gauges that must be 0 once nobody is served.

    Args:
        may_be_new: the server may not have had a request yet: such a server has no gauges, where
            several processes share their metrics. A missing gauge is 0 then; else it is NaN, which
            equals nothing, so that whoever waits for 0 waits for the gauge as well.
    """
    samples = await get_samples(session, url)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    missing = 0.0 if may_be_new else math.nan
    return Load(*(samples.get(f"vllm:{name}", missing) for name in names))
