"""Simulated requests a second on the Azure conversation trace, on one core.

    python -m benchmarks.simulation [--trace FILE] [--requests N] [--scheduler vllm] [--profile]

The whole trace (19,366 requests) runs through the scheduler twice: with one `schedule()` for each
step, and with decode steps fast-forwarded where that is exact. Reading the trace, building the
scheduler and computing the metrics are not counted; times are CPU time of the one thread, so that
a busy machine disturbs them less. Of the stepped run, the table says how much was spent inside
vLLM's own `Scheduler.schedule()` and `Scheduler.update_from_output()`, KV-cache manager included,
and in which multiple of that the whole run took.

To compare: Vidur, with a scheduler of its own, simulates 286 (Sarathi policy) to 570 (vLLM policy)
requests a second of this trace on a machine with two such cores.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.lab.roofline import RooflineCostModel
from neuron_sched_lab.lab.simulation import SimulationResult, simulate
from neuron_sched_lab.lab.workload import Workload
from neuron_sched_lab.scheduler import NeuronScheduler

if TYPE_CHECKING:
    from typing_extensions import Self

TRACE = Path("../shared/data/azure_conv.csv")
SCHEDULERS = {"neuron": NeuronScheduler, "vllm": Scheduler}
# An engine that keeps up with the trace's 5.5 requests/s most of the time, so that batches and
# queues are of a usual size.
SETTINGS: dict[str, Any] = {
    "cost_model": RooflineCostModel(
        "llama-3.1-8b",
        tp_degree=16,
        max_model_len=16384,
        decode_context_length_buckets=(1024, 2048, 4096, 8192),
    ),
    "max_num_seqs": 32,
    "max_num_batched_tokens": 8192,
    "max_model_len": 16384,
    "block_size": 32,
    "keep_records": False,
}
TARGET_RATIO = 1.3
TARGET_REQUESTS_PER_SECOND = 5000


class Stopwatch:
    """Counts the CPU time inside some methods of vLLM's Scheduler, while it is open."""

    methods = ("schedule", "update_from_output")

    def __init__(self) -> None:
        self.nanoseconds = 0

    def __enter__(self) -> Self:
        self._own = {name: getattr(Scheduler, name) for name in self.methods}
        for name, method in self._own.items():
            setattr(Scheduler, name, self._timed(method))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for name, method in self._own.items():
            setattr(Scheduler, name, method)

    def _timed(self, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                self.nanoseconds += time.thread_time_ns() - start

        return timed


def run(workload: Workload, scheduler: type[Scheduler], *, fast_forward: bool) -> tuple[Any, float]:
    """Return the result of a simulation and the CPU seconds that it took."""
    simulate(workload.head(50), scheduler, fast_forward=fast_forward, **SETTINGS)  # warm up
    # As vLLM's engine does when it starts: what is there already is not looked at again.
    gc.collect()
    gc.freeze()
    start = time.thread_time()
    result = simulate(workload, scheduler, fast_forward=fast_forward, **SETTINGS)
    seconds = time.thread_time() - start
    gc.unfreeze()
    return result, seconds


def same(stepped: SimulationResult, forwarded: SimulationResult) -> bool:
    """Tell whether two runs have the same metrics, to the last digit."""
    return stepped.metrics().as_dict() == forwarded.metrics().as_dict()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=TRACE, help="any format (%(default)s)")
    parser.add_argument("--requests", type=int, help="only the first so many")
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="neuron")
    parser.add_argument("--profile", action="store_true", help="profile the fast-forwarded run")
    args = parser.parse_args()
    workload = Workload.read(args.trace, max_requests=args.requests)
    scheduler = SCHEDULERS[args.scheduler]
    print(workload.describe())
    with Stopwatch() as stopwatch:
        forwarded, seconds = run(workload, scheduler, fast_forward=True)
    own, rate = stopwatch.nanoseconds / 1e9, len(workload) / seconds
    print(
        f"{scheduler.__name__}, fast-forwarded: {rate:.0f} requests/s "
        f"({seconds:.1f} s for {forwarded.log.num_steps} steps, {forwarded.num_scheduled_steps} of "
        f"them scheduled), {own / seconds:.0%} of it in vLLM's own scheduler, target "
        f"{TARGET_REQUESTS_PER_SECOND}: "
        f"{'met' if rate >= TARGET_REQUESTS_PER_SECOND else 'MISSED'}",
        flush=True,
    )
    if args.profile:
        profile = cProfile.Profile(time.thread_time)
        profile.runcall(simulate, workload, scheduler, **SETTINGS)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    with Stopwatch() as stopwatch:
        stepped, seconds = run(workload, scheduler, fast_forward=False)
    own = stopwatch.nanoseconds / 1e9
    ratio = seconds / own
    print(
        f"{scheduler.__name__}, step by step: {len(workload) / seconds:.0f} requests/s "
        f"({seconds:.1f} s), {own / seconds:.0%} of it in vLLM's own scheduler: {ratio:.2f} times "
        f"that, target {TARGET_RATIO}: {'met' if ratio <= TARGET_RATIO else 'MISSED'}"
    )
    print(f"same metrics, to the last digit: {'yes' if same(stepped, forwarded) else 'NO'}")
    print(forwarded.metrics())


if __name__ == "__main__":
    main()
