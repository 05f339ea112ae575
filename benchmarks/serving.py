"""vLLM's `vllm bench serve` against our schedulers and vLLM's own, its tables side by side.

    python -m benchmarks.serving
    python -m benchmarks.serving --num-prompts 400 --request-rate 20

All servers run, on the tiny model and with the same settings; one at a time is asked, in shuffled
turns, so that what else the machine does falls on all alike. The table holds the median of the
rounds. Wall-clock figures of a CPU: they compare on one machine and say nothing about a Trn2.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from neuron_sched_lab.tiny_model.tasks import tiny_model_path
from tests.serving.server import ASYNC, BASE, ENVIRONMENT, MODEL, SYNC, Server

SERVERS: dict[str, dict[str, Any]] = {
    "vLLM Scheduler, vLLM CPUWorker": BASE,
    # Its steps are ones that vLLM's worker can run; what differs is the scheduler alone.
    "NeuronScheduler, vLLM CPUWorker": {**BASE, "scheduler-cls": SYNC["scheduler-cls"]},
    "NeuronScheduler, NeuronWorker": SYNC,
    "NeuronAsyncScheduler, NeuronWorker": ASYNC,
}

FIGURES = {
    "completed": "requests completed",
    "failed": "requests failed",
    "duration": "duration (s)",
    "total_input_tokens": "input tokens",
    "total_output_tokens": "output tokens",
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "mean_ttft_ms": "TTFT mean (ms)",
    "median_ttft_ms": "TTFT median (ms)",
    "p99_ttft_ms": "TTFT p99 (ms)",
    "mean_tpot_ms": "TPOT mean (ms)",
    "median_tpot_ms": "TPOT median (ms)",
    "p99_tpot_ms": "TPOT p99 (ms)",
    "median_itl_ms": "ITL median (ms)",
    "p99_itl_ms": "ITL p99 (ms)",
}


def bench(server: Server, folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run `vllm bench serve` against a server; return the result that it saves.

    Another seed makes other prompts, so that nothing comes from the prefix cache.

    Raises:
        subprocess.CalledProcessError: it failed; its output was printed.
    """
    result = folder / "result.json"
    command = [sys.executable, "-m", "neuron_sched_lab.vllm_command", "bench", "serve"]
    command += ["--base-url", server.url, "--model", MODEL, "--tokenizer", str(tiny_model_path())]
    command += ["--dataset-name", "random", "--ignore-eos", "--temperature", "0"]
    command += ["--random-input-len", "300", "--random-output-len", "40"]
    command += ["--random-range-ratio", "0.8", "--seed", str(seed), "--disable-tqdm"]
    command += ["--num-warmups", "4", "--num-prompts", str(options.num_prompts)]
    command += ["--request-rate", str(options.request_rate), "--save-result"]
    command += ["--result-dir", str(folder), "--result-filename", result.name]
    finished = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        print(finished.stdout, finished.stderr, server.tail(), sep="\n", file=sys.stderr)
    finished.check_returncode()
    return json.loads(result.read_text(encoding="utf-8"))


def run_rounds(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return the results of each server, one a round."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in SERVERS}
    rng = random.Random(0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [
            (name, stack.enter_context(Server(settings, folder)))
            for name, settings in SERVERS.items()
        ]
        for number in range(options.rounds):
            for name, server in rng.sample(servers, len(servers)):
                results[name].append(bench(server, folder, options, seed=number))
    return results


def print_table(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the medians as Markdown, one column a server."""
    print(f"| | {' | '.join(results)} |")
    print(f"|---|{'---:|' * len(results)}")
    for key, label in FIGURES.items():
        values = [median(result[key] for result in rounds) for rounds in results.values()]
        cells = [f"{value:.0f}" if value == int(value) else f"{value:.1f}" for value in values]
        print(f"| {label} | {' | '.join(cells)} |")


def main() -> int:
    """Run all servers; return 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-prompts", type=int, default=200)
    parser.add_argument("--request-rate", default="inf", help="a second; inf: all at once")
    parser.add_argument("--rounds", type=int, default=3)
    results = run_rounds(parser.parse_args())
    print_table(results)
    return 1 if any(result["failed"] for rounds in results.values() for result in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
