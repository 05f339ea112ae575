"""Serves the tiny model with `vllm serve` and puts it through what production does to a server.

    python -m tests.serving.run
    python -m tests.serving.run --clients 300 --burst 2000 --times 3

The right answers come from vLLM's own scheduler and worker, served first. Exit code: 0 if every
request of every run ended as it must, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from neuron_sched_lab.tiny_model import tasks
from tests.serving import scenarios
from tests.serving.scenarios import LENGTHS, Answers, Report
from tests.serving.server import ASYNC, BASE, SYNC, Server

NUM_BESIDE = 8
"""Requests beside the slow reader."""


async def run_scenarios(
    server: Server, prompts: list[tasks.Task], answers: Answers, num_clients: int, seed: int
) -> list[Report]:
    """Run every scenario on one server; the first `num_clients` prompts are the clients'."""
    few = prompts[:num_clients]
    return [
        await scenarios.bad_requests(server),
        await scenarios.clients(server, few, answers, seed),
        await scenarios.burst(server, prompts[num_clients:], answers),
        await scenarios.slow_reader(server, prompts[:NUM_BESIDE], answers),
        await scenarios.killed_and_restarted(server, few, answers),
        await scenarios.killed_and_restarted(server, few, answers, engine_only=True),
        # Once more, to see that the survivors of two crashes are whole.
        await scenarios.bad_requests(server),
    ]


def show(reports: list[Report]) -> bool:
    """Print the numbers; tell whether nothing was wrong."""
    for report in reports:
        print(f"\n{report.name}: {'FAILED' if report.faults else 'passed'}")
        for name, value in report.numbers.items():
            print(f"  {name:<28} {value}")
        for fault in report.faults:
            print(f"  FAULT {fault}")
    sys.stdout.flush()
    return not any(report.faults for report in reports)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--burst", type=int, default=2000)
    parser.add_argument("--times", type=int, default=1, help="runs, each with another seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", action="store_true", help="NeuronScheduler, not the async one")
    options = parser.parse_args()
    # So that the server ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    prompts = tasks.mixed(options.clients + options.burst, lengths=LENGTHS, seed=options.seed)
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        with Server(BASE, Path(folder)) as base:
            started = time.monotonic()
            answers = asyncio.run(scenarios.ask(base, prompts))
            seconds = time.monotonic() - started
        print(f"vLLM's own scheduler and worker: {len(answers)} answers in {seconds:.0f} s")
        for number in range(options.times):
            print(f"\n=== run {number + 1} of {options.times}")
            started = time.monotonic()
            with Server(SYNC if options.sync else ASYNC, Path(folder)) as server:
                reports = asyncio.run(
                    run_scenarios(server, prompts, answers, options.clients, options.seed + number)
                )
            passed &= show(reports)
            print(f"\nrun {number + 1}: {time.monotonic() - started:.0f} s")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
