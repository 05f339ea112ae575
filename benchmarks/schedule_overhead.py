"""What our schedulers' schedule() costs beside vLLM's own, in one run; and whether memory grows.

    python -m benchmarks.schedule_overhead [--steps 300] [--quick]
    python -m benchmarks.schedule_overhead --memory 1000000

Decode steps at capacity: R requests run, W wait. All schedulers of a round take one step in turn,
in an order that is shuffled anew for each turn, so that neither a busy moment of the machine nor
the caches that another left favour one of them. The baseline of a synchronous class is vLLM's
Scheduler, of an asynchronous one its AsyncScheduler; `extra` is the median difference to its step
of the same turn, in CPU microseconds. `seed` is the seed's algorithm taken literally, which moves
the whole waiting queue in each step; it has a round of its own, because it sweeps the caches.

Exit code 1 if a point misses the target, or memory grows.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from neuron_sched_lab import NeuronAsyncScheduler, NeuronScheduler
from tests.scheduler.harness import make_request, make_scheduler
from tests.scheduler.seed_literal import NeuronScheduler as SeedScheduler

BASELINE = {
    NeuronScheduler: Scheduler,
    NeuronAsyncScheduler: AsyncScheduler,
    SeedScheduler: Scheduler,
}
ROUNDS = (
    (Scheduler, NeuronScheduler, AsyncScheduler, NeuronAsyncScheduler),
    (Scheduler, SeedScheduler),
)
RUNNING, WAITING = (8, 64, 256), (0, 100, 10_000)
BLOCK_SIZE = 16
PROMPT = 16
WARM_UP_STEPS = 20
TARGET_RATIO, TARGET_EXTRA_US = 1.05, 10

MEMORY_SAMPLES = 20
MAX_GROWTH_MIB = 1.0


class Point(NamedTuple):
    """What a class costs at one R and W, in CPU microseconds of schedule()."""

    median_us: float
    base_us: float
    extra_us: float
    """Median of the differences, turn by turn."""
    over_us: float
    """Median of what a step takes beyond TARGET_RATIO times the baseline's."""


def prepare(cls: type[Scheduler], running: int, waiting: int, steps: int) -> Scheduler:
    """Return a scheduler with `running` requests decoding and `waiting` more queued."""
    max_model_len = -(-(PROMPT + running + steps + WARM_UP_STEPS + 2) // BLOCK_SIZE) * BLOCK_SIZE
    scheduler = make_scheduler(
        cls,
        max_num_seqs=running,
        max_num_batched_tokens=4096,
        max_model_len=max_model_len,
        num_blocks=running * (max_model_len // BLOCK_SIZE) + 1,
        block_size=BLOCK_SIZE,
        async_scheduling=issubclass(cls, AsyncScheduler),
    )
    for i in range(running + waiting):
        scheduler.add_request(make_request(f"r{i}", PROMPT, max_tokens=max_model_len - PROMPT))
    while len(scheduler.running) < running:
        finish_step(scheduler, scheduler.schedule())
    for _ in range(WARM_UP_STEPS):
        finish_step(scheduler, scheduler.schedule())
    return scheduler


def finish_step(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Answer token 7 for every request that is not in the middle of its prompt."""
    ids = list(output.num_scheduled_tokens)
    tokens = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
    index = {request_id: i for i, request_id in enumerate(ids)}
    scheduler.update_from_output(output, ModelRunnerOutput(ids, index, tokens))


def time_round(
    classes: tuple[type[Scheduler], ...], running: int, waiting: int, steps: int
) -> dict[type[Scheduler], list[float]]:
    """Return the CPU microseconds of each of `steps` calls of schedule(), by class."""
    schedulers = [(cls, prepare(cls, running, waiting, steps)) for cls in classes]
    times: dict[type[Scheduler], list[float]] = {cls: [] for cls in classes}
    rng = random.Random(0)
    # As the engine does, so that the garbage collector does not walk over what stays.
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        rng.shuffle(schedulers)
        for cls, scheduler in schedulers:
            start = time.thread_time_ns()
            output = scheduler.schedule()
            times[cls].append((time.thread_time_ns() - start) / 1000)
            finish_step(scheduler, output)
    gc.unfreeze()
    return times


def measure(running: int, waiting: int, steps: int) -> dict[type[Scheduler], Point]:
    """Return the figures of every class that has a baseline, at one R and W."""
    points = {}
    for classes in ROUNDS:
        times = time_round(classes, running, waiting, steps)
        for cls in set(classes) & set(BASELINE):
            base = times[BASELINE[cls]]
            pairs = list(zip(times[cls], base, strict=True))
            points[cls] = Point(
                median_us=median(times[cls]),
                base_us=median(base),
                extra_us=median(own - other for own, other in pairs),
                over_us=median(own - TARGET_RATIO * other for own, other in pairs),
            )
    return {cls: points[cls] for cls in BASELINE}


def print_times(running: tuple[int, ...], steps: int) -> bool:
    """Print the table; tell whether our classes meet the target at every point."""
    print(
        f"{'running':>7} {'waiting':>7}  {'class':<22}{'us':>9}{'vLLM us':>9}{'ratio':>7}"
        f"{'extra us':>10}  within {TARGET_RATIO}x + {TARGET_EXTRA_US} us"
    )
    all_within = True
    for num_running, num_waiting in itertools.product(running, WAITING):
        for cls, point in measure(num_running, num_waiting, steps).items():
            label = "seed" if cls is SeedScheduler else cls.__name__
            within = point.over_us <= TARGET_EXTRA_US
            all_within &= within or cls is SeedScheduler
            print(
                f"{num_running:>7} {num_waiting:>7}  {label:<22}{point.median_us:>9.1f}"
                f"{point.base_us:>9.1f}{point.median_us / point.base_us:>7.2f}"
                f"{point.extra_us:>10.1f}  {'yes' if within else 'NO'}",
                flush=True,
            )
    return all_within


def get_resident_mib() -> float:
    """Memory of this process in RAM, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def print_memory(cls: type[Scheduler], steps: int) -> bool:
    """Serve requests without end for `steps` steps; tell whether memory stays flat.

    Flat: in the second half of the run it never exceeds the peak of the first by more than
    MAX_GROWTH_MIB. Prompts are chunked, differ, share prefixes, and fill the prefix cache.
    """
    scheduler = make_scheduler(
        cls, max_num_seqs=8, max_model_len=128, num_blocks=8 * 8 + 1, prefix_caching=True,
        max_num_batched_tokens=32, async_scheduling=issubclass(cls, AsyncScheduler),
    )  # fmt: skip
    rng, served, samples = random.Random(0), 0, []
    for step in range(steps):
        while len(scheduler.waiting) < 2:
            prompt = [1] * rng.randrange(0, 48, 16) + [rng.randrange(251) for _ in range(20)]
            max_tokens = rng.randrange(1, 60)
            scheduler.add_request(make_request(f"r{served}", prompt, max_tokens=max_tokens))
            served += 1
        finish_step(scheduler, scheduler.schedule())
        if (step + 1) % max(1, steps // MEMORY_SAMPLES) == 0:
            gc.collect()
            samples.append(get_resident_mib())
    half = len(samples) // 2
    growth = max(samples[half:]) - max(samples[:half])
    flat = growth <= MAX_GROWTH_MIB
    print(
        f"{cls.__name__}: {steps:,} steps, {served:,} requests; "
        f"MiB every {steps // MEMORY_SAMPLES:,} steps: "
        f"{' '.join(f'{sample:.1f}' for sample in samples)}\n"
        f"growth in the second half {growth:+.2f} MiB: {'flat' if flat else 'NOT FLAT'}",
        flush=True,
    )
    return flat


def main() -> int:
    """Print the table, or the memory; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps a point (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"only R = {RUNNING[0]}")
    parser.add_argument("--memory", type=int, metavar="STEPS", help="memory over so many steps")
    args = parser.parse_args()
    if args.memory:
        flat = [print_memory(cls, args.memory) for cls in (NeuronScheduler, NeuronAsyncScheduler)]
        return 0 if all(flat) else 1
    return 0 if print_times(RUNNING[:1] if args.quick else RUNNING, args.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
