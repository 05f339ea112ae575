"""How well a simulation predicts a live run: the tiny model on this machine's CPU.

    python -m benchmarks.fidelity [--repeats 3]

One workload is replayed live, and its step times become a cost model. With that, others are
simulated, of another arrival rate, other lengths and another kind of arrivals, and replayed live
as well. The two live runs take a step in turn, on clocks of CPU time: the speed of a shared
machine drifts within seconds, and by more than the errors that are to be seen. The table shows the
error of each figure, simulated against live, and the median of the absolute errors.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from neuron_sched_lab.lab.calibration import calibrate
from neuron_sched_lab.lab.environment import prepare_environment
from neuron_sched_lab.lab.metrics import Metrics
from neuron_sched_lab.lab.replay import replay, replay_in_turn
from neuron_sched_lab.lab.workload import Workload
from neuron_sched_lab.lab.workload_generators import bursty, closed_loop, poisson

SETTINGS: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "block_size": 32,
    "enable_prefix_caching": False,
    "neuron_config": {"num_batched_tokens_buckets": [64, 128, 256]},
}
TARGET = 0.10

FIGURES = {
    "makespan": lambda m: m.makespan,
    "TTFT p50": lambda m: m.ttft.p50,
    "TTFT mean": lambda m: m.ttft.mean,
    "TPOT p50": lambda m: m.tpot.p50,
    "ITL p50": lambda m: m.itl.p50,
    "ITL mean": lambda m: m.itl.mean,
}


def calibration_workload(seed: int) -> Workload:
    """Return requests that come in bursts, so that every decode bucket is met."""
    return bursty(25, 3000, burstiness=0.3, prompt=(200, 0.7), output=(40, 0.5), seed=seed)


def predicted_workloads(seed: int) -> list[Workload]:
    """Return what is predicted: another rate, other lengths, another kind of arrivals."""
    return [
        poisson(12, 300, prompt=(120, 0.7), output=(60, 0.5), seed=seed + 1),
        bursty(20, 300, prompt=(300, 0.5), output=(25, 0.5), seed=seed + 2),
        closed_loop(6, 300, prompt=(150, 0.7), output=(30, 0.5), seed=seed + 3),
    ]


@contextmanager
def warm_lab() -> Iterator[Any]:
    """Open a Lab that has met every graph."""
    from neuron_sched_lab.lab.session import Lab

    with Lab(**SETTINGS) as lab:
        replay(lab, closed_loop(8, 24, prompt=(150, 0.9), output=8, seed=9))
        lab.reset()
        yield lab


def errors(live: Metrics, simulated: Metrics) -> dict[str, float]:
    """Return the relative error of each figure."""
    return {name: figure(simulated) / figure(live) - 1 for name, figure in FIGURES.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="calibrations (%(default)s)")
    args = parser.parse_args()
    prepare_environment()
    from neuron_sched_lab.lab.simulation import simulate

    seen: dict[str, list[float]] = defaultdict(list)
    print(f"{'workload':<24}" + "".join(f"{name:>11}" for name in FIGURES))
    for repeat in range(args.repeats):
        known = calibration_workload(100 * repeat).fit(1024)
        for workload in (w.fit(1024) for w in predicted_workloads(100 * repeat)):
            with warm_lab() as calibrated, warm_lab() as predicted:
                live, calibration = replay_in_turn(predicted, workload, (calibrated, known))
                cost_model = calibrate(calibration.log, calibration.trace)
            simulated = simulate(workload, cost_model=cost_model, **SETTINGS)
            row = errors(live.metrics(), simulated.metrics())
            print(
                f"{workload.name:<24}" + "".join(f"{e:>+11.1%}" for e in row.values()), flush=True
            )
            for name, error in row.items():
                seen[name].append(abs(error))
    medians = {name: median(values) for name, values in seen.items()}
    print(f"{'median of |error|':<24}" + "".join(f"{medians[n]:>11.1%}" for n in FIGURES))
    worst = max(medians.values())
    print(
        f"worst median {worst:.1%}, target {TARGET:.0%}: {'met' if worst <= TARGET else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
