"""How well simulations predict live runs, and the latencies published for a Trn2.

    python -m benchmarks.fidelity [--repeats 3]

First the published latencies: the roofline cost model simulates what they were measured with. The
last line says whether the rows that its constants were fitted to are within the margin.

Then this machine's CPU, with the tiny model. One workload is replayed live, and its step times
become a cost model. With that, others are simulated, of another arrival rate, other lengths and
another kind of arrivals, and replayed live as well. The two live runs take a step in turn, on
clocks of CPU time: the speed of a shared machine drifts within seconds, and by more than the errors
that are to be seen. The table shows the error of each figure, simulated against live, and the
median of the absolute errors.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from neuron_sched_lab.engine.replay import replay, replay_in_turn
from neuron_sched_lab.settings.environment import prepare_environment
from neuron_sched_lab.simulation.calibration import calibrate
from neuron_sched_lab.simulation.roofline import RooflineCostModel
from neuron_sched_lab.trace.metrics import Metrics
from neuron_sched_lab.workloads.generators import bursty, closed_loop, poisson
from neuron_sched_lab.workloads.workload import Workload

SETTINGS: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "block_size": 32,
    "enable_prefix_caching": False,
    "neuron_config": {"num_batched_tokens_buckets": [64, 128, 256]},
}
TARGET = 0.10


class Published(NamedTuple):
    """Median latencies that AWS publishes for a model served on trn2, and how they were measured.

    Attributes:
        source: where.
        model: a name of `roofline.MODELS`.
        tp_degree: logical cores, of two physical ones each.
        max_model_len: as served.
        buckets: num_batched_tokens_buckets.
        users: requests at a time.
        prompt: tokens.
        output: tokens.
        ttft: milliseconds.
        tpot: milliseconds.
        fitted: whether the constants of the cost model were fitted to it too.
    """

    source: str
    model: str
    tp_degree: int
    max_model_len: int
    buckets: list[int]
    users: int
    prompt: int
    output: int
    ttft: float
    tpot: float
    fitted: bool = True


# The tutorials of the Neuron documentation, without speculative decoding. The third was measured
# with Llama-3.3-70B, which has the shape of 3.1, and the last two on the stack before, NxD
# Inference; their answers of 1,500 tokens are cut to 200, which changes no median.
PUBLISHED = [
    Published("vLLM Neuron, EAGLE3 with Llama 3.1", "llama-3.1-8b", 8, 2048,
              [128, 256, 512, 1024, 2048], 2, 512, 128, 51.07, 10.52),
    Published("vLLM Neuron, EAGLE3 with gpt-oss", "gpt-oss-120b", 16, 768,
              [512], 1, 512, 128, 252.33, 7.00),
    Published("NxD Inference, Llama-3.3-70B", "llama-3.1-70b", 64, 12288,
              [10240, 12288], 1, 10000, 200, 814, 19.6),
    Published("NxD Inference, Llama-3.1-405B", "llama-3.1-405b", 64, 12288,
              [10240, 12288], 1, 10000, 200, 2442, 37.9, fitted=False),
]  # fmt: skip
MARGIN = 0.12
"""How far a published figure may be from the simulated one."""


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
    from neuron_sched_lab.engine.lab import Lab

    with Lab(**SETTINGS) as lab:
        replay(lab, closed_loop(8, 24, prompt=(150, 0.9), output=8, seed=9))
        lab.reset()
        yield lab


def errors(live: Metrics, simulated: Metrics) -> dict[str, float]:
    """Return the relative error of each figure."""
    return {name: figure(simulated) / figure(live) - 1 for name, figure in FIGURES.items()}


def simulate_published(row: Published) -> Metrics:
    """Return the figures of a simulation of what was published: each user asks twelve times."""
    from neuron_sched_lab.simulation.simulation import simulate

    workload = closed_loop(
        row.users, 12 * row.users, think_seconds=0.005, prompt=row.prompt, output=row.output
    )
    return simulate(
        workload,
        cost_model=RooflineCostModel(row.model, row.tp_degree, row.max_model_len),
        max_num_seqs=row.users,
        max_model_len=row.max_model_len,
        max_num_batched_tokens=row.buckets[-1],
        neuron_config={"num_batched_tokens_buckets": row.buckets},
    ).metrics()


def compare_with_published() -> None:
    """Print what the roofline cost model makes of each published row."""
    print(f"{'published, simulated, error':<36}{'TTFT ms':>24}{'TPOT ms':>24}")
    worst = 0.0
    for row in PUBLISHED:
        metrics = simulate_published(row)
        cells = ""
        for published, seconds in ((row.ttft, metrics.ttft.p50), (row.tpot, metrics.tpot.p50)):
            error = seconds * 1000 / published - 1
            cells += f"{published:>8.4g}{seconds * 1000:>8.4g}{error:>+8.1%}"
            worst = max(worst, abs(error) if row.fitted else 0)
        print(f"{row.source:<36}{cells}{'' if row.fitted else '  out of the range fitted'}")
    verdict = "met" if worst <= MARGIN else "MISSED"
    print(f"worst of those fitted {worst:.1%}, margin {MARGIN:.0%}: {verdict}\n", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="calibrations (%(default)s)")
    args = parser.parse_args()
    prepare_environment()
    compare_with_published()
    predict_this_cpu(args.repeats)


def predict_this_cpu(repeats: int) -> None:
    """Print the errors of simulations of live runs of the tiny model, and their medians."""
    from neuron_sched_lab.simulation.simulation import simulate

    seen: dict[str, list[float]] = defaultdict(list)
    print(f"{'workload':<24}" + "".join(f"{name:>11}" for name in FIGURES))
    for repeat in range(repeats):
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
