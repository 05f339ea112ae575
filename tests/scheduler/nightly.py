"""The stateful test at random and at length, with a table of what it covered.

    python -m tests.scheduler.nightly --steps 1000000 [--seed 0]

Lives of schedulers, one after the other: settings and events are drawn from the seed, every step is
checked (world.py). The table shows how often each event met each state, and in how many different
fillings of the queues. Exit code 1 if an event was never seen, for then the run proves less than it
says, or if memory still grew in the second half.
"""

import argparse
import logging
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import NeuronAsyncScheduler, NeuronScheduler, PaddedScheduler
from tests.scheduler.world import World


class AsyncPaddedScheduler(PaddedScheduler, AsyncScheduler):
    """Async without the KV bound: preempts with output in flight."""


CLASSES: dict[type[Scheduler], int] = {
    NeuronScheduler: 5,
    NeuronAsyncScheduler: 4,
    PaddedScheduler: 1,
    AsyncPaddedScheduler: 1,
}
"""What is played, with its weight. The last two preempt; the KV bound keeps the others from it."""

STEPS_PER_LIFE = 300

TENTHS = 10
MAX_GROWTH_MIB = 4
"""Of the peak in the second half. A later life may have more requests than any before."""

EVENTS = (
    *("request arrives", "n samples arrive", "structured request arrives"),
    *("session opens", "session input", "session input before its turn", "session ends"),
    *("abort, in prefill", "abort, decoding", "abort, waiting", "abort, waiting for grammar"),
    *("abort, preempted", "abort, between inputs"),
    *("reset", "reset with preemption"),
    *("pause: PAUSED_NEW", "pause: PAUSED_ALL", "pause: UNPAUSED"),
    *("throttle: True", "throttle: False"),
    *("step", "prefill step, first chunk", "prefill step, more chunks", "decode step"),
    *("empty step", "preemption", "prefix hit, partial", "prefix hit, full"),
    "adapters full",
    *("finish: stop", "finish: length", "finish: error"),
)


def live(world: World, rng: random.Random, max_steps: int) -> None:
    """Play one life of at most `max_steps`, with a taste of its own for each event."""
    driver, pick = world.driver, rng.choice
    chances: list[tuple[float, Callable[[], object]]] = [
        (pick([0.05, 0.2, 0.6]), lambda: world.arrive(pick)),
        (pick([0.0, 0.0, 0.1]), lambda: world.arrive_structured(pick)),
        (pick([0.0, 0.1]) * world.has_sessions, lambda: world.open_session(pick)),
        (pick([0.1, 0.3]), lambda: driver.sessions and world.feed_session(pick)),
        (pick([0.0, 0.02]), lambda: driver.sessions and world.end_session(pick)),
        (pick([0.0, 0.0, 0.05]), lambda: driver.unfinished and world.abort(pick)),
        (pick([0.0, 0.0, 0.02]), lambda: world.reset(pick)),
        (pick([0.0, 0.0, 0.04]), lambda: world.pause_or_go_on(pick)),
        (pick([0.0, 0.0, 0.1]), world.throttle_or_not),
    ]
    most_at_once = pick([4, 12, 40])
    while driver.steps < max_steps:
        for chance, move in chances:
            arrivals = chances[:3]
            if rng.random() < chance and not (
                (chance, move) in arrivals and len(driver.unfinished) >= most_at_once
            ):
                move()
        world.step()
    world.run_dry()


def run(steps: int, seed: int, report: Callable[[int], None]) -> Counter[tuple[str, str, str]]:
    """Play lives until `steps` steps are done; return the coverage of all.

    Raises:
        AssertionError: something broke; names the life by class and seed.
    """
    rng = random.Random(seed)
    coverage: Counter[tuple[str, str, str]] = Counter()
    done = 0
    while done < steps:
        life_seed = rng.randrange(2**32)
        cls = rng.choices(list(CLASSES), list(CLASSES.values()))[0]
        life_rng = random.Random(life_seed)
        world = World(cls, life_rng.choice)
        try:
            live(world, life_rng, min(STEPS_PER_LIFE, steps - done))
        except Exception as error:
            raise AssertionError(
                f"{cls.__name__}, life {life_seed}, step {world.driver.steps}: {error!r}\n"
                f"settings: {world.settings}"
            ) from error
        done += world.driver.steps
        coverage.update(world.coverage)
        report(done)
    return coverage


def print_coverage(coverage: Counter[tuple[str, str, str]]) -> None:
    states = sorted({state for state, _, _ in coverage})
    print(f"{'event':<30}" + "".join(f"{state:>16}" for state in states) + f"{'queues':>8}")
    seen = {event for _, _, event in coverage}
    for event in (*EVENTS, *sorted(seen - set(EVENTS))):
        counts = [
            sum(n for (s, _, e), n in coverage.items() if (s, e) == (state, event))
            for state in states
        ]
        fillings = len({q for _, q, e in coverage if e == event})
        print(f"{event:<30}" + "".join(f"{n:>16,}" for n in counts) + f"{fillings:>8}")
    queues = {q for _, q, _ in coverage}
    print(
        f"{len(queues)} fillings of the queues, "
        f"{len({(s, q) for s, q, _ in coverage})} with state, "
        f"{len(coverage):,} different (state, queues, event)"
    )


class MemoryLog:
    """The peak of the resident memory, a line for each tenth of a run."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.peaks: list[float] = []
        """In MiB, after one tenth, two tenths and so on."""

    def __call__(self, done: int) -> None:
        while done * TENTHS >= self.steps * (len(self.peaks) + 1):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self.peaks.append(peak)
            print(f"{done:>12,} of {self.steps:,} steps, peak memory {peak:.1f} MiB", flush=True)

    @property
    def growth(self) -> float:
        """MiB that the peak rose in the second half."""
        return self.peaks[-1] - self.peaks[TENTHS // 2 - 1]


def main() -> int:
    """Run and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it tells of each reset and pause
    begin, memory = time.monotonic(), MemoryLog(args.steps)
    coverage = run(args.steps, args.seed, report=memory)
    seconds = time.monotonic() - begin
    steps = sum(n for (_, _, event), n in coverage.items() if event == "step")
    print(f"\n{steps:,} steps in {seconds:.0f} s ({steps / seconds:,.0f} a second)")
    print_coverage(coverage)
    missing = set(EVENTS) - {event for _, _, event in coverage}
    if missing:
        print(f"never seen: {', '.join(sorted(missing))}")
    if memory.growth > MAX_GROWTH_MIB:
        print(f"memory grew by {memory.growth:.1f} MiB in the second half, not {MAX_GROWTH_MIB}")
    return 1 if missing or memory.growth > MAX_GROWTH_MIB else 0


if __name__ == "__main__":
    sys.exit(main())
