"""Replay: feeds a workload to a live Lab in real time and measures it.

    with Lab(max_num_seqs=8, max_model_len=2048) as lab:
        live = replay(lab, poisson(4, 60, prompt=200, output=40))
    print(live.metrics())

It writes the same RunLog as a simulation of the workload, so that the two can be compared figure
by figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING

from ..trace.metrics import SLO, Metrics
from ..trace.run_log import RunLog
from ..workloads.arrivals import Arrivals

if TYPE_CHECKING:
    from ..trace.trace import Trace
    from ..workloads.workload import Workload
    from .lab import Lab

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

    A step is measured with all that the engine does in it; the time it takes to add requests, in
    between, stands in the log as `intake_seconds`. Answers have the workload's lengths: the
    end-of-sequence token is ignored. A prompt of which only the length and the shared prefixes are
    known gets made-up tokens.

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


def replay_in_turn(
    lab: Lab, workload: Workload, beside: tuple[Lab, Workload]
) -> tuple[ReplayResult, ReplayResult]:
    """Replay a workload while another Lab replays another, one step of each in turn.

    Each has a clock of its own, the CPU time of its own steps. The speed of a shared machine
    drifts within seconds; in turn, it drifts for both alike, so what differs between the runs is
    due to the runs. It ends when `workload` does; of the other, the result holds what was done by
    then.

    Raises:
        ValueError: as `replay`; or the other run ended first.
    """
    live, other = _Replay(lab, workload, cpu_time=True), _Replay(*beside, cpu_time=True)
    while live.step():
        if not other.step():
            raise ValueError(
                f"beside: {beside[1].name!r} ended before {workload.name!r}; make it longer"
            )
    return live.result, other.result


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
        self.arrivals = Arrivals(workload.requests)

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
            self.clock.wait_until(self.arrivals.next_seconds)
            self._add_due()
        start = self.clock.now()
        record = self.lab.step()
        end = self.clock.now()
        if record is not None:
            self.log.add_record(record, start, end)
            for request_id, _ in record.finished:
                self.arrivals.release_followers(request_id, end)
        self.clock.stop()
        return True

    def _add_due(self) -> None:
        start = self.clock.now()
        while (due := self.arrivals.pop_due(self.clock.now())) is not None:
            request = self.workload.requests[due.request_index]
            self.lab.add(
                request.prompt if request.prompt is not None else self._prompt(due.request_index),
                max_tokens=request.num_output_tokens,
                request_id=request.request_id,
                ignore_eos=True,
            )
            self.log.add_request(request.request_id, due.seconds, request.num_prompt_tokens)
        self.log.intake_seconds += self.clock.now() - start

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
