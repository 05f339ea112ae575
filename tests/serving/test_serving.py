"""The scenarios of `python -m tests.serving.run`, small enough for CI, on one server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from neuron_sched_lab.tiny_model import tasks
from tests.serving import scenarios
from tests.serving.client import End, Job, get_samples, open_session, run_job
from tests.serving.scenarios import Report, get_expected, get_verified_prompts
from tests.serving.server import ASYNC, Server
from tests.sockets import HOST

PROMPTS = get_verified_prompts(124, seed=0)
FEW = PROMPTS[:24]
ANSWERS = get_expected(PROMPTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(ASYNC, tmp_path_factory.mktemp("serving")) as running:
        yield running


def check(report: Report, server: Server) -> None:
    assert not report.faults, f"{report.name}: {report.faults}\n{report.numbers}\n{server.tail()}"


def test_bad_requests(server):
    check(asyncio.run(scenarios.bad_requests(server)), server)


def test_clients_that_hang_up(server):
    report = asyncio.run(scenarios.clients(server, FEW, ANSWERS, seed=0))
    check(report, server)
    assert report.numbers["aborts acknowledged"] > 0


def test_burst(server):
    check(asyncio.run(scenarios.burst(server, PROMPTS[len(FEW) :], ANSWERS)), server)


def test_slow_reader(server):
    check(asyncio.run(scenarios.slow_reader(server, FEW[:4], ANSWERS)), server)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_listens_only_on_loopback(server):
    assert server.get_listening_addresses() == {HOST}


def get_growth(server: Server, *bodies: dict[str, Any]) -> dict[str, float]:
    """Serve requests one after the other; return by how much each sample of /metrics grew."""

    async def serve() -> dict[str, float]:
        async with open_session() as session:
            before = await get_samples(session, server.url)
            for number, body in enumerate(bodies):
                outcome = await run_job(session, server.url, Job(f"counted{number}", body))
                assert outcome.end is End.ANSWER
            await Report("").drain(session, server.url)
            after = await get_samples(session, server.url)
            return {name: value - before.get(name, 0) for name, value in after.items()}

    return asyncio.run(serve())


def test_metrics_show_what_was_served(server):
    num_requests, max_tokens = 3, 5
    # No two share a block, so nothing of them is in the prefix cache.
    prompts = [f"{number}" * (40 + number) for number in range(num_requests)]
    grown = get_growth(
        server, *({"prompt": p, "max_tokens": max_tokens, "ignore_eos": True} for p in prompts)
    )
    # bos and 40, 41, 42 characters, each a chunk of its own in the first bucket.
    assert grown["vllm_neuron:prefill_chunk_tokens_count"] == num_requests
    assert grown["vllm_neuron:prefill_chunk_tokens_sum"] == 41 + 42 + 43
    (bucket,) = {
        name
        for name, value in grown.items()
        if name.startswith("vllm_neuron:prefill_padding_tokens_total{") and value
    }
    first = float(bucket.split('"')[1])
    assert grown[bucket] == num_requests * first - (41 + 42 + 43)
    # The prefill samples the first token.
    assert grown["vllm_neuron:decode_seqs_sum"] == num_requests * (max_tokens - 1)
    assert grown["vllm_neuron:decode_seqs_count"] == num_requests * (max_tokens - 1)
    assert grown['vllm_neuron:scheduler_transitions_total{state="IDLE"}'] == num_requests


def test_the_engine_schedules_ahead(server):
    """A decode is under way before the last one turns out to have sampled EOS."""
    (task,) = tasks.verified(1, kinds=["recall"], max_tokens=64)
    grown = get_growth(server, {"prompt": task.prompt, "max_tokens": 20})
    needed = len(task.answer)  # the prefill samples the first token, the last is EOS
    assert grown["vllm_neuron:decode_seqs_sum"] == needed + 1


def test_metrics_show_the_burst_and_the_warm_up(server):
    async def scrape() -> dict[str, float]:
        async with open_session() as session:
            return await get_samples(session, server.url)

    samples = asyncio.run(scrape())
    states = {name for name, value in samples.items() if "scheduler_state{" in name and value}
    assert states == {'vllm_neuron:scheduler_state{state="IDLE"}'}
    assert samples['vllm_neuron:held_back_steps_total{reason="KV cache saturated"}'] > 0
    assert samples["vllm_neuron:deferred_for_kv_total"] > 0
    for phase, histogram in (("prefill", "prefill_chunk_tokens"), ("decode", "decode_seqs")):
        ladder = [name for name in samples if name.startswith(f"vllm_neuron:{histogram}_bucket{{")]
        compiled = samples[f'vllm_neuron:graph_compile_seconds_count{{phase="{phase}"}}']
        assert compiled == len(ladder) - 1  # le="+Inf" is no bucket


def test_killed_and_restarted(server):
    """Last, because it costs a start."""
    check(asyncio.run(scenarios.killed_and_restarted(server, FEW, ANSWERS)), server)
