"""What our schedulers' schedule() costs beside vLLM's own, in one run.

    python -m benchmarks.schedule_overhead [--steps 300] [--quick]

Decode steps at capacity: R requests run, W wait. Every class takes one step in turn, so that a
busy moment of the machine hits all alike; the table shows medians of CPU time. The baseline of a
synchronous class is vLLM's Scheduler, of an asynchronous one its AsyncScheduler. `seed` is the
seed's algorithm taken literally, which moves the whole waiting queue in each step.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import TYPE_CHECKING

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from neuron_sched_lab import NeuronAsyncScheduler, NeuronScheduler
from tests.scheduler.harness import make_request, make_scheduler
from tests.scheduler.seed_literal import NeuronScheduler as SeedScheduler

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

BASELINE = {
    Scheduler: Scheduler,
    NeuronScheduler: Scheduler,
    SeedScheduler: Scheduler,
    AsyncScheduler: AsyncScheduler,
    NeuronAsyncScheduler: AsyncScheduler,
}
BLOCK_SIZE = 16
PROMPT = 16
WARM_UP_STEPS = 20
TARGET_RATIO, TARGET_EXTRA_US = 1.05, 15


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


def measure(running: int, waiting: int, steps: int) -> dict[type[Scheduler], float]:
    """Return the median CPU microseconds of schedule() by class."""
    schedulers = {cls: prepare(cls, running, waiting, steps) for cls in BASELINE}
    times: dict[type[Scheduler], list[int]] = {cls: [] for cls in BASELINE}
    for _ in range(steps):
        for cls, scheduler in schedulers.items():
            start = time.thread_time_ns()
            output = scheduler.schedule()
            times[cls].append(time.thread_time_ns() - start)
            finish_step(scheduler, output)
    return {cls: median(values) / 1000 for cls, values in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps a point (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="only R=16")
    args = parser.parse_args()
    print(
        f"{'running':>7} {'waiting':>7}  {'class':<22} {'us':>9} {'ratio':>6} {'extra us':>9}"
        f"  within {TARGET_RATIO}x + {TARGET_EXTRA_US} us"
    )
    for running in (16,) if args.quick else (8, 64, 256):
        for waiting in (0, 100, 10_000):
            figures = measure(running, waiting, args.steps)
            for cls, us in figures.items():
                base = figures[BASELINE[cls]]
                label = "seed" if cls is SeedScheduler else cls.__name__
                within = us <= base * TARGET_RATIO + TARGET_EXTRA_US
                print(
                    f"{running:>7} {waiting:>7}  {label:<22} {us:>9.1f} {us / base:>6.2f} "
                    f"{us - base:>9.1f}  {'yes' if within else 'NO'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
