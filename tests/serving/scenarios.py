"""What production does to a server, each against one that runs, each with its verdict."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from neuron_sched_lab.tiny_model import tasks
from tests.serving.client import (
    End,
    Job,
    Load,
    Outcome,
    get_load,
    get_samples,
    open_session,
    run_job,
)
from tests.serving.server import MODEL, Server

EMPTY = Load(0, 0, 0)
DRAIN_SECONDS = 60
SAMPLE_SECONDS = 0.2
LENGTHS = (9, 24, 40, 64, 100, 130, 200, 400, 900, 1500)
SLOW_BODY = {"prompt": "1 2 3 ", "max_tokens": 1800, "ignore_eos": True}
"""Its stream is longer than what the sockets between two processes hold."""

Answers = dict[tuple[str, int], str]
"""The right text for each (prompt, max_tokens)."""


@dataclass
class Report:
    """Numbers of one scenario, and what went wrong in it."""

    name: str
    numbers: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count_ends(self, outcomes: Sequence[Outcome]) -> None:
        """Note how the requests ended; a lost one is a fault."""
        ends = Counter(outcome.end for outcome in outcomes)
        self.numbers["sent"] = len(outcomes)
        self.numbers.update({end.value: ends[end] for end in End})
        if ends[End.LOST]:
            self.faults.append(f"{ends[End.LOST]} requests are lost")

    def compare(self, outcomes: Sequence[Outcome], answers: Answers) -> None:
        """Compare the full answers, and what was read before hanging up, with the right ones."""
        wrong = []
        for outcome in outcomes:
            right = answers[_get_key(outcome.job)]
            whole = outcome.end is End.ANSWER
            if outcome.text != (right if whole else right[: len(outcome.text)]):
                wrong.append(f"{outcome.job.request_id}: {outcome.text!r}, not {right!r}")
        self.numbers["differing texts"] = len(wrong)
        self.faults += wrong[:3]

    def expect(self, outcomes: Sequence[Outcome], *ends: End) -> None:
        """Note each request that ended otherwise."""
        others = [outcome for outcome in outcomes if outcome.end not in ends]
        self.faults += [f"{o.job.request_id}: {o.end.value} {o.error[:200]}" for o in others[:3]]

    async def drain(self, session: aiohttp.ClientSession, url: str) -> None:
        """Wait until the server holds nothing; that it still does is a fault."""
        load = EMPTY
        for _ in range(int(DRAIN_SECONDS / SAMPLE_SECONDS)):
            load = await get_load(session, url)
            if load == EMPTY:
                break
            await asyncio.sleep(SAMPLE_SECONDS)
        else:
            self.faults.append(f"not empty {DRAIN_SECONDS} s after the last request: {load}")
        self.numbers["left at the end"] = str(load)


def get_verified_prompts(num_prompts: int, seed: int) -> list[tasks.Task]:
    """Return prompts of mixed lengths whose right answers are known, some of them twice."""
    pool = tasks.verified(min_tokens=LENGTHS[0], max_tokens=LENGTHS[-1])
    rng = random.Random(f"serving/{seed}")
    return [rng.choice(pool) for _ in range(num_prompts)]


def make_jobs(
    name: str, prompts: Sequence[tasks.Task], seed: int = 0, hang_ups: float = 0.0
) -> list[Job]:
    """Return one job for each prompt; a share of `hang_ups` of their clients hang up."""
    rng = random.Random(f"{name}/{seed}")
    jobs = []
    for number, task in enumerate(prompts):
        after = rng.randrange(max(1, task.max_tokens // 2)) if rng.random() < hang_ups else None
        body = {"prompt": task.prompt, "max_tokens": task.max_tokens}
        jobs.append(Job(f"{name}{number}", body, after, hang_up_seconds=rng.uniform(0, 2)))
    return jobs


def get_expected(prompts: Sequence[tasks.Task]) -> Answers:
    """Return the answers from the list of verified prompts, as the server would stream them.

    A generated EOS (the newline) is no text; a count prompt goes on to the space after it.
    """
    return {
        (task.prompt, task.max_tokens): task.answer + (" " if task.kind == "count" else "")
        for task in prompts
    }


async def run_all(server: Server, jobs: Sequence[Job]) -> tuple[list[Outcome], Load]:
    """Run all jobs at once; return their ends and the highest load that was seen."""
    async with open_session() as session:
        highest = EMPTY
        running = asyncio.gather(*(run_job(session, server.url, job) for job in jobs))
        while not running.done():
            load = await get_load(session, server.url, may_be_new=True)
            highest = Load(*map(max, _values(highest), _values(load)))
            await asyncio.wait([running], timeout=SAMPLE_SECONDS)
        return running.result(), highest


async def clients(
    server: Server, prompts: Sequence[tasks.Task], answers: Answers, seed: int
) -> Report:
    """Concurrent streaming clients of mixed lengths; a third hang up at random moments."""
    report = Report(f"{len(prompts)} clients, a third hang up")
    jobs = make_jobs("client", prompts, seed, hang_ups=1 / 3)
    async with open_session() as session:
        finished_before = await _get_num_finished(session, server)
        outcomes, highest = await run_all(server, jobs)
        report.count_ends(outcomes)
        report.numbers["highest load"] = str(highest)
        report.compare(outcomes, answers)
        patient = [outcome for outcome in outcomes if outcome.job.hang_up_after is None]
        report.expect(patient, End.ANSWER)
        await report.drain(session, server.url)
        num_finished = await _get_num_finished(session, server) - finished_before
    _check_aborts(report, server, outcomes, num_finished)
    return report


async def _get_num_finished(session: aiohttp.ClientSession, server: Server) -> int:
    """Return how many requests the server has answered; it does not count aborted ones."""
    samples = await get_samples(session, server.url)
    return int(samples.get("vllm:request_success_total", 0))


def _check_aborts(
    report: Report, server: Server, outcomes: Sequence[Outcome], num_finished: int
) -> None:
    """Every request that arrived was answered in full or its abort was acknowledged."""
    ids = {outcome.job.request_id for outcome in outcomes}
    received = server.get_ids_in_log("Received request") & ids
    aborted = server.get_ids_in_log("Aborted request(s)") & received
    report.numbers["received by the server"] = len(received)
    report.numbers["answered by the server"] = num_finished
    report.numbers["aborts acknowledged"] = len(aborted)
    # A request may be both: its last token was on the way when the client hung up.
    if not len(received - aborted) <= num_finished <= len(received):
        report.faults.append(
            f"{len(received)} requests received, but {num_finished} answered and "
            f"{len(aborted)} aborted"
        )
    answered = {o.job.request_id for o in outcomes if o.end is End.ANSWER}
    report.faults += [f"{i}: answered in full, but not received" for i in answered - received][:3]


async def burst(server: Server, prompts: Sequence[tasks.Task], answers: Answers) -> Report:
    """Requests that arrive all at once and wait in the queue."""
    report = Report(f"burst of {len(prompts)}")
    jobs = make_jobs("burst", prompts)
    outcomes, highest = await run_all(server, jobs)
    report.count_ends(outcomes)
    report.numbers["highest load"] = str(highest)
    if highest.waiting < len(prompts) / 4:
        report.faults.append(f"at most {highest.waiting:g} requests were seen waiting: no burst")
    report.compare(outcomes, answers)
    report.expect(outcomes, End.ANSWER)
    async with open_session() as session:
        await report.drain(session, server.url)
    return report


async def slow_reader(server: Server, prompts: Sequence[tasks.Task], answers: Answers) -> Report:
    """One client stops reading after its first piece until others have had their answers."""
    report = Report("a slow reader")
    others = make_jobs("beside", prompts)
    others_done, has_begun = asyncio.Event(), asyncio.Event()

    async def wait_for_others() -> None:
        has_begun.set()
        await others_done.wait()

    # read_bufsize: aiohttp then stops reading the socket, and the server cannot write on.
    async with open_session() as session, aiohttp.ClientSession(read_bufsize=256) as slow_session:
        slow = asyncio.create_task(
            run_job(
                slow_session, server.url, Job("slow", SLOW_BODY), on_first_piece=wait_for_others
            )
        )
        await asyncio.wait(
            [slow, asyncio.create_task(has_begun.wait())], return_when="FIRST_COMPLETED"
        )
        beside = await asyncio.gather(*(run_job(session, server.url, job) for job in others))
        still_reading = not slow.done()
        others_done.set()
        outcome = await slow
        report.count_ends([*beside, outcome])
        report.numbers["others done first"] = still_reading
        # Fewer than its tokens: the server joins what a reader does not fetch in time.
        report.numbers["pieces the slow one read"] = outcome.num_pieces
        known = [o for o in (*beside, outcome) if _get_key(o.job) in answers]
        report.numbers["texts compared"] = len(known)
        report.compare(known, answers)
        report.expect([*beside, outcome], End.ANSWER)
        if outcome.finish_reason != "length" or not still_reading:
            report.faults.append(f"the slow reader ended with {outcome.finish_reason}")
        await report.drain(session, server.url)
    return report


TOO_LONG = "1" * (tasks.MAX_MODEL_LEN + 1)

BAD_BODIES: dict[str, Any] = {
    "prompt too long": {"prompt": TOO_LONG, "max_tokens": 1},
    "prompt fits, answer does not": {"prompt": TOO_LONG[:2000], "max_tokens": 100},
    "max_tokens above max_model_len": {"prompt": "ab", "max_tokens": 4000},
    "empty prompt": {"prompt": ""},
    "empty list": {"prompt": []},
    "no prompt": {},
    "token out of vocabulary": {"prompt": [1, 5, 999]},
    "negative token": {"prompt": [1, -5]},
    "huge token": {"prompt": [2**63]},
    "max_tokens 0": {"prompt": "ab", "max_tokens": 0},
    "temperature is a word": {"prompt": "ab", "temperature": "hot"},
    "unknown model": {"prompt": "ab", "model": "nobody"},
    "refused by the worker": {"prompt": "ab", "prompt_logprobs": 2, "stream": False},
}
BAD_BYTES: dict[str, bytes] = {
    "cut off": b'{"model": "tiny", "prompt": ',
    "a list": b"[]",
    "no UTF-8": b'{"model": "tiny", "prompt": "\xff\xfe"}',
    "deep": b"[" * 100_000,
    "nothing": b"",
}
ODD_PROMPTS = {"characters without a token": "\x00\u00e9\u6f22\U0001f600", "one character": "a"}


async def bad_requests(server: Server) -> Report:
    """Prompts that are too long, empty or malformed: each is refused, the server stays."""
    report = Report("too long, empty, malformed")
    statuses: Counter[int] = Counter()
    async with open_session() as session:
        for what, body in BAD_BODIES.items():
            async with session.post(
                f"{server.url}/v1/completions", json={"model": MODEL, "stream": True, **body}
            ) as response:
                _expect_refusal(report, statuses, what, response.status, await response.text())
        for what, data in BAD_BYTES.items():
            async with session.post(
                f"{server.url}/v1/completions",
                data=data,
                headers={"Content-Type": "application/json"},
            ) as response:
                _expect_refusal(report, statuses, what, response.status, await response.text())
        odd = [
            await run_job(session, server.url, Job(f"odd{i}", {"prompt": text, "max_tokens": 4}))
            for i, text in enumerate(ODD_PROMPTS.values())
        ]
        report.expect(odd, End.ANSWER)
        report.numbers["refused"] = dict(sorted(statuses.items()))
        report.numbers["odd but answered"] = len(odd)
        await report.drain(session, server.url)
    return report


def _expect_refusal(
    report: Report, statuses: Counter[int], what: str, status: int, text: str
) -> None:
    # vLLM reads some prompts only after the stream has begun: the error is then in the stream.
    in_stream = re.match(r'data: \{"error": .*"code": (\d+)', text) if status == 200 else None
    status = int(in_stream[1]) if in_stream else status
    statuses[status] += 1
    if not 400 <= status < 500 or "error" not in text:
        report.faults.append(f"{what}: {status} {text[:200]}")


async def killed_and_restarted(
    server: Server, prompts: Sequence[tasks.Task], answers: Answers, *, engine_only: bool = False
) -> Report:
    """The server dies in the middle of everything; clients see it and ask again."""
    report = Report("engine killed" if engine_only else "server killed")
    report.name += f" with {len(prompts)} clients, restarted"
    name = "engine" if engine_only else "killed"
    jobs = make_jobs(name, prompts)
    first_pieces = itertools.count(1)

    async def kill_in_the_middle() -> None:
        # By then some are answered, some get their tokens, and most wait.
        if next(first_pieces) == len(prompts) // 4:
            await asyncio.to_thread(server.kill_engine if engine_only else server.kill)

    async with open_session() as session:
        outcomes = await asyncio.gather(
            *(run_job(session, server.url, j, on_first_piece=kill_in_the_middle) for j in jobs)
        )
    report.count_ends(outcomes)
    report.compare(outcomes, answers)
    report.expect(outcomes, End.ANSWER, End.ERROR)
    report.numbers["cut off in the stream"] = sum(
        o.end is End.ERROR and o.num_pieces > 0 for o in outcomes
    )
    failed = [outcome.job for outcome in outcomes if outcome.end is not End.ANSWER]
    if not failed:
        report.faults.append("all were answered before the kill: nothing was tested")
    if engine_only:
        report.numbers["front end ended by itself"] = await asyncio.to_thread(server.wait, 30)
        await asyncio.to_thread(server.kill)
    report.numbers["seconds to restart"] = round(await asyncio.to_thread(server.start), 1)
    async with open_session() as session:
        again = await asyncio.gather(*(run_job(session, server.url, job) for job in failed))
        report.numbers["asked again and answered"] = sum(o.end is End.ANSWER for o in again)
        report.compare([*outcomes, *again], answers)
        report.expect(again, End.ANSWER)
        await report.drain(session, server.url)
    return report


async def ask(server: Server, prompts: Sequence[tasks.Task]) -> Answers:
    """Return the server's own answers to the distinct ones of `prompts`, and to SLOW_BODY."""
    distinct = {(task.prompt, task.max_tokens): task for task in prompts}
    jobs = [*make_jobs("ask", list(distinct.values())), Job("ask-slow", SLOW_BODY)]
    outcomes, _ = await run_all(server, jobs)
    report = Report("ask")
    report.expect(outcomes, End.ANSWER)
    if report.faults:
        raise RuntimeError(f"the reference does not answer: {report.faults}")
    return {_get_key(outcome.job): outcome.text for outcome in outcomes}


def _get_key(job: Job) -> tuple[str, int]:
    return job.body["prompt"], job.body["max_tokens"]


def _values(load: Load) -> tuple[float, float, float]:
    return load.running, load.waiting, load.kv_usage
