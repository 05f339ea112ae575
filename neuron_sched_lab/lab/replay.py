"""Replay: feeds a workload to a live Lab in real time and measures it.

    with Lab(max_num_seqs=8, max_model_len=2048) as lab:
        live = replay(lab, poisson(4, 60, prompt=200, output=40))
    print(live.metrics())

It writes the same RunLog as a simulation of the workload, so that the two can be compared figure
by figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING

from .metrics import SLO, Metrics
from .run_log import RunLog

if TYPE_CHECKING:
    from .session import Lab
    from .trace import StepRecord, Trace
    from .workload import Workload

FIRST_TOKEN = 3
"""Ids below are padding, start and end in the tiny model, and in most others."""

_MULTIPLIER = 6364136223846793005
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class ReplayResult:
    """What came of a replay.

    Attributes:
        workload: its name.
        trace: the Lab's trace.
        log: wall-clock times and counts of every step.
    """

    workload: str
    trace: Trace
    log: RunLog

    def metrics(self, slo: SLO | None = None) -> Metrics:
        """Return the figures of the run, goodput under `slo`."""
        return Metrics.of(self.log, slo)


def replay(lab: Lab, workload: Workload, *, cpu_time: bool = False) -> ReplayResult:
    """Add each request to `lab` when it is due, step, and measure every step.

    A step is measured from the end of the one before (or from the arrival that ended a pause) to
    its own end, so it holds all that the engine does, the adding of requests included. Answers
    have the workload's lengths: the end-of-sequence token is ignored. A prompt of which only the
    length and the shared prefixes are known gets made-up tokens.

    Args:
        lab: an idle Lab.
        workload: who arrives when.
        cpu_time: whether the clock is the CPU time of this process and pauses, in which nothing
            runs, are skipped. Other processes on the machine disturb that less than real time,
            and it means the same as long as the model runs on the CPU in one thread.

    Raises:
        ValueError: a request does not fit the Lab; the Lab is not idle.
    """
    live = _Replay(lab, workload, cpu_time)
    while live.step():
        pass
    return live.result


def replay_in_turn(runs: Sequence[tuple[Lab, Workload]]) -> list[ReplayResult]:
    """Replay several workloads at once, each in its own Lab, one step of each in turn.

    Each has a clock of its own, the CPU time of its own steps. The speed of a shared machine
    drifts within seconds; in turn, it drifts for all alike, so what differs between the runs is
    due to the runs.

    Raises:
        ValueError: as `replay`.
    """
    lives = [_Replay(lab, workload, cpu_time=True) for lab, workload in runs]
    while sum(live.step() for live in lives):  # sum, not any: each makes its step
        pass
    return [live.result for live in lives]


class _Clock:
    """Seconds since it was made: real ones, or CPU time and the pauses that were skipped."""

    def __init__(self, cpu_time: bool) -> None:
        self._cpu_time = cpu_time
        self._read = process_time if cpu_time else perf_counter
        self._zero = self._read()
        self._stopped_at: float | None = self._zero

    def now(self) -> float:
        return self._read() - self._zero

    def start(self) -> None:
        """Go on; the CPU time of others since `stop()` does not count."""
        if self._cpu_time and self._stopped_at is not None:
            self._zero += self._read() - self._stopped_at
        self._stopped_at = None

    def stop(self) -> None:
        self._stopped_at = self._read()

    def wait_until(self, seconds: float) -> None:
        remaining = seconds - self.now()
        if remaining <= 0:
            return
        if self._cpu_time:
            self._zero -= remaining
        else:
            sleep(remaining)


class _Replay:
    """One replay, step by step."""

    def __init__(self, lab: Lab, workload: Workload, cpu_time: bool) -> None:
        if lab.has_unfinished_requests:
            raise ValueError("lab: it has unfinished requests; run it until they have ended")
        self.lab = lab
        self.workload = workload
        self.clock = _Clock(cpu_time)
        self.log = RunLog(kv_blocks_total=lab.trace.config.kv_blocks_total)
        self.step_start = 0.0
        self.arrivals: list[tuple[float, int]] = []
        self.followers: dict[str, list[int]] = {}
        for index, request in enumerate(workload):
            if request.after is None:
                self.arrivals.append((request.arrival_seconds, index))
            else:
                self.followers.setdefault(request.after, []).append(index)
        heapify(self.arrivals)

    @property
    def result(self) -> ReplayResult:
        return ReplayResult(self.workload.name, self.lab.trace, self.log)

    def step(self) -> bool:
        """Make a step, after a pause if nothing is left to do; return False at the end."""
        self.clock.start()
        self._add_due()
        if not self.lab.has_unfinished_requests:
            if not self.arrivals:
                return False
            self.step_start = self.arrivals[0][0]
            self.clock.wait_until(self.step_start)
            self._add_due()
        record = self.lab.step()
        end = self.clock.now()
        if record is not None:
            self.log.add_record(record, self.step_start, end)
            self._release_followers(record, end)
        self.step_start = end
        self.clock.stop()
        return True

    def _add_due(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.clock.now():
            arrival, index = heappop(self.arrivals)
            request = self.workload.requests[index]
            self.lab.add(
                request.prompt if request.prompt is not None else self._prompt(index),
                max_tokens=request.num_output_tokens,
                request_id=request.request_id,
                ignore_eos=True,
            )
            self.log.add_request(request.request_id, arrival, request.num_prompt_tokens)

    def _release_followers(self, record: StepRecord, end: float) -> None:
        for request_id, _ in record.finished:
            for index in self.followers.pop(request_id, ()):
                pause = self.workload.requests[index].arrival_seconds
                heappush(self.arrivals, (end + pause, index))

    def _prompt(self, index: int) -> list[int]:
        """Return ids within the model's vocabulary, equal where the workload's prefixes are.

        Each depends on all ids before it, so that prompts that differ once differ from there on.
        """
        num_tokens = self.lab.llm.model_config.get_vocab_size() - FIRST_TOKEN
        state, ids = 0, []
        for token in self.workload.prompt_token_ids(index):
            state = (state * _MULTIPLIER + token + 1) & _MASK
            ids.append(FIRST_TOKEN + (state >> 33) % num_tokens)
        return ids
