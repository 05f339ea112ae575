"""What the KV admission policies gain on real traces: requests at once, throughput, latency.

    python -m benchmarks.kv_admission [--requests 2000] [--max-tokens 1024] [--scale 1] [--jobs 1]

The first requests of each Azure LLM inference trace of 2023 (see tests/scheduler/traces.py) arrive
as they did and run through NeuronScheduler in simulated time, with the step times of Llama-3.1-8B
on sixteen logical cores of a Trn2, as the roofline model has them: no Trainium was at hand. Each
request asks for `--max-tokens` and ends where the trace says (or asks for exactly that, with 0):
what it declares is what the policies go by. Ratios are against worst_case, the seed's policy. Where
it cannot keep up with the trace its queue grows to the end, so the ratios of the first token grow
with `--requests`; those of throughput do not, beyond the rate at which requests arrive.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from neuron_sched_lab.experiments import kv_policies
from neuron_sched_lab.simulation.roofline import RooflineCostModel
from neuron_sched_lab.workloads.workload import Workload
from tests.scheduler.traces import DATA, MISSING

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_MODEL_LEN = 16_384
KV_SIZES = (2, 4, 8, 16)
"""KV caches, in requests of MAX_MODEL_LEN."""

SETTINGS: dict[str, Any] = {
    "cost_model": RooflineCostModel(
        "llama-3.1-8b",
        tp_degree=16,
        max_model_len=MAX_MODEL_LEN,
        decode_context_length_buckets=(1024, 2048, 4096, 8192),
    ),
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "max_model_len": MAX_MODEL_LEN,
    "block_size": 32,
}

HEADER = (
    f"{'KV tokens':>10} {'policy':<12} {'running':>15} {'tokens/s':>15} {'TTFT p50, s':>17} "
    f"{'TTFT p99, s':>17} {'E2E p50, s':>17} {'ITL p99, ms':>12} {'preempted':>9}"
)
RATIOS = {
    "running, mean": ".1f",
    "output tokens/s": ".0f",
    "TTFT p50, s": ".3g",
    "TTFT p99, s": ".3g",
    "end to end p50, s": ".3g",
}


def format_rows(table: DataFrame) -> list[str]:
    """Return a line for each size and policy, ratios against worst_case beside the figures."""
    worst = table[table["policy"] == "worst_case"].set_index("KV tokens")
    lines = []
    for _, row in table.iterrows():
        cells = []
        for name, digits in RATIOS.items():
            ratio = row[name] / worst.loc[row["KV tokens"], name]
            # Above a thousand, :g would write 1.73e+03.
            value = f"{row[name]:{digits if row[name] < 1000 else '.0f'}}"
            cells.append(f"{value} {f'({ratio:.2g}x)':>9}")
        running, rate, *times = cells
        lines.append(
            f"{row['KV tokens']:>10,} {row['policy']:<12} {running:>15} {rate:>15} "
            f"{' '.join(f'{time:>17}' for time in times)} {1000 * row['ITL p99, s']:>12.1f} "
            f"{row['preemptions']:>9}"
        )
    return lines


def main() -> None:
    """Print a table for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="of each trace (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=1024, help="declared (%(default)s)")
    parser.add_argument("--scale", type=float, default=1, help="speed of arrivals (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    args = parser.parse_args()
    for name in ("azure_code", "azure_conv"):
        path = DATA / f"{name}.csv"
        if not path.exists():
            print(f"{MISSING.format(name=name)}: no figures")
            continue
        workload = Workload.read(path, max_requests=args.requests).scale(args.scale)
        experiment = kv_policies(
            workload,
            kv_tokens=[size * MAX_MODEL_LEN for size in KV_SIZES],
            declared_max_tokens=args.max_tokens or None,
            n_jobs=args.jobs,
            **SETTINGS,
        )
        print(f"\n{workload.describe()}\n{HEADER}")
        print("\n".join(format_rows(experiment.table)), flush=True)
        for note in experiment.notes:
            print(f"Note: {note}")


if __name__ == "__main__":
    main()
