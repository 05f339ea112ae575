"""Simulated requests a second on the Azure conversation trace, on one core.

    python -m benchmarks.simulation [--trace FILE] [--requests N] [--scheduler vllm] [--profile]

The whole trace (19,366 requests) runs through the scheduler: three times with decode steps
fast-forwarded where that is exact, then with one `schedule()` for each step. Reading the trace,
building the scheduler and computing the metrics are not counted; times are CPU time of the one
thread, so that a busy machine disturbs them less. Of both, the table says how much was spent inside
vLLM's own `Scheduler.schedule()` and `Scheduler.update_from_output()`, KV-cache manager included,
and for the stepped run, how many times as long the whole took. Where a target is missed, or with
--profile, another run of a part of the trace tells where the time goes.

To compare: Vidur, with a scheduler of its own, simulates 286 (Sarathi policy) to 570 (vLLM policy)
requests a second of this trace on a machine with two such cores.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import NeuronScheduler
from neuron_sched_lab.simulation.fast_forward import FastForward
from neuron_sched_lab.simulation.roofline import RooflineCostModel
from neuron_sched_lab.simulation.simulation import SimulationResult, simulate
from neuron_sched_lab.simulation.virtual_engine import VirtualEngine
from neuron_sched_lab.trace.run_log import RunLog
from neuron_sched_lab.workloads.workload import Workload

if TYPE_CHECKING:
    from typing_extensions import Self

    Parts: TypeAlias = dict[str, list[tuple[type, str]]]

TRACE = Path("../shared/data/azure_conv.csv")
SCHEDULERS = {"neuron": NeuronScheduler, "vllm": Scheduler}
# An engine that keeps up with the trace's 5.5 requests/s most of the time, so that batches and
# queues are of a usual size.
SETTINGS: dict[str, Any] = {
    "cost_model": RooflineCostModel(
        "llama-3.1-8b",
        tp_degree=32,
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


REPEATS = 3
REQUESTS_TO_PROFILE = 2000

VLLM = "vLLM's own schedule() and update_from_output()"
WHOLE = {"simulation": [(VirtualEngine, "run")]}
SPLIT = {VLLM: [(Scheduler, "schedule"), (Scheduler, "update_from_output")], **WHOLE}
PARTS = {
    "vLLM: KV-cache manager": [
        (KVCacheManager, "get_computed_blocks"),
        (KVCacheManager, "allocate_slots"),
        (KVCacheManager, "estimate_cached_tokens"),
        (KVCacheManager, "free"),
        (BlockPool, "get_new_blocks"),
    ],
    "vLLM: the rest of schedule()": [(Scheduler, "schedule")],
    "vLLM: the rest of update_from_output()": [(Scheduler, "update_from_output")],
    "our scheduler class around it": [
        (NeuronScheduler, "schedule"),
        (NeuronScheduler, "update_from_output"),
        (NeuronScheduler, "add_request"),
    ],
    "fast-forward": [(FastForward, "advance")],
    "making vLLM's requests": [(VirtualEngine, "_add")],
    "the log": [(RunLog, "add_run")],
    "cost model, answers, clock": [(VirtualEngine, "run")],
}


class Stopwatch:
    """Counts the CPU time inside some methods, while it is open.

    Args:
        parts: methods, as (class, name), by the name under which their time is counted. Of methods
            that call each other, each has only the time that it spends itself.

    Attributes:
        seconds: by part.
    """

    def __init__(self, parts: Parts) -> None:
        self.seconds: Counter[str] = Counter()
        self._parts = parts
        self._inner = [0]  # nanoseconds of the calls within each open call

    def __enter__(self) -> Self:
        self._own = []
        for part, methods in self._parts.items():
            for cls, name in methods:
                method = getattr(cls, name)
                self._own.append((cls, name, method))
                setattr(cls, name, self._timed(part, method))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for cls, name, method in self._own:
            setattr(cls, name, method)

    def _timed(self, part: str, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            start = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                spent = time.thread_time_ns() - start
                self.seconds[part] += (spent - self._inner.pop()) / 1e9
                self._inner[-1] += spent

        return timed


def run(
    workload: Workload, scheduler: type[Scheduler], parts: Parts, *, fast_forward: bool
) -> tuple[SimulationResult, Counter[str]]:
    """Return the result of a simulation, and the CPU seconds that each of `parts` took."""
    simulate(workload.head(50), scheduler, fast_forward=fast_forward, **SETTINGS)  # warm up
    # As vLLM's engine does when it starts: what is there already is not looked at again.
    gc.collect()
    gc.freeze()
    with Stopwatch(parts) as stopwatch:
        result = simulate(workload, scheduler, fast_forward=fast_forward, **SETTINGS)
    gc.unfreeze()
    return result, stopwatch.seconds


def print_profile(workload: Workload, scheduler: type[Scheduler], *, fast_forward: bool) -> None:
    """Print the share of each part of a run, the clocks' own time included."""
    head = workload.head(REQUESTS_TO_PROFILE)
    _, seconds = run(head, scheduler, PARTS, fast_forward=fast_forward)
    print(f"  where the time goes, {len(head)} requests:")
    for part, spent in seconds.most_common():
        each = spent / len(head) * 1e6
        print(f"  {spent / seconds.total():>6.1%}  {each:>6.1f} us/request  {part}")


def same(stepped: SimulationResult, forwarded: SimulationResult) -> bool:
    """Tell whether two runs have the same metrics, to the last digit."""
    return stepped.metrics().as_dict() == forwarded.metrics().as_dict()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=TRACE, help="any format (%(default)s)")
    parser.add_argument("--requests", type=int, help="only the first so many")
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="neuron")
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    args = parser.parse_args()
    workload = Workload.read(args.trace, max_requests=args.requests)
    scheduler = SCHEDULERS[args.scheduler]
    print(workload.describe())
    # The rate without the inner stopwatch, whose own time is a few percent of such a short run.
    wholes = []
    for _ in range(REPEATS):
        forwarded, seconds = run(workload, scheduler, WHOLE, fast_forward=True)
        wholes.append(seconds.total())
    rate = len(workload) / median(wholes)
    _, seconds = run(workload, scheduler, SPLIT, fast_forward=True)
    met = rate >= TARGET_REQUESTS_PER_SECOND
    print(
        f"{scheduler.__name__}, fast-forwarded: {rate:.0f} requests/s (median of {REPEATS} runs of "
        f"{min(wholes):.2f} to {max(wholes):.2f} s, {forwarded.log.num_steps} steps, "
        f"{forwarded.num_scheduled_steps} of them scheduled), "
        f"{seconds[VLLM] / seconds.total():.0%} of it in {VLLM}, target "
        f"{TARGET_REQUESTS_PER_SECOND}: {'met' if met else 'MISSED'}",
        flush=True,
    )
    if args.profile or not met:
        print_profile(workload, scheduler, fast_forward=True)
    stepped, seconds = run(workload, scheduler, SPLIT, fast_forward=False)
    whole, ratio = seconds.total(), seconds.total() / seconds[VLLM]
    met = ratio <= TARGET_RATIO
    print(
        f"{scheduler.__name__}, step by step: {len(workload) / whole:.0f} requests/s "
        f"({whole:.1f} s), {1 / ratio:.0%} of it in {VLLM}: {ratio:.2f} times "
        f"that, target {TARGET_RATIO}: {'met' if met else 'MISSED'}"
    )
    if args.profile or not met:
        print_profile(workload, scheduler, fast_forward=False)
    print(f"same metrics, to the last digit: {'yes' if same(stepped, forwarded) else 'NO'}")
    print(forwarded.metrics())


if __name__ == "__main__":
    main()
