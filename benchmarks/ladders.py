"""How fast the best ladder is found, and how much padding it saves on real prompts.

    python -m benchmarks.ladders [--repeat 5]

Part 1: one million random lengths, CPU seconds of optimal_buckets(), histogram and checks included.
The baseline is the same dynamic programme with every row searched in full, as NumPy does it best;
both find ladders of equal cost. Part 2: the Azure LLM inference traces 2023, where they are found
(see tests/scheduler/traces.py): share of padding of the usual ladders, of the best ladder with as
many graphs, and of a ladder fitted to the first half of the trace on the second half.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from unittest.mock import patch

import numpy as np

from neuron_sched_lab.scheduler import ladders
from neuron_sched_lab.scheduler.ladders import (
    chunk_lengths,
    optimal_buckets,
    pad_lengths,
    padding_waste,
)
from neuron_sched_lab.scheduler.usual_ladders import (
    compare_ladders,
    evaluate_held_out,
    usual_ladders,
)
from tests.scheduler.traces import MISSING, azure_lengths

NUM_LENGTHS = 1_000_000
COUNT = 8
MAX_NUM_BATCHED_TOKENS = 8192
TARGET_SECONDS = 1.0


def cpu_seconds(call: Callable[[], list[int]], repeat: int) -> tuple[float, list[int]]:
    """Return the median CPU seconds of `call` and what it returned."""
    times = []
    for _ in range(repeat):
        start = time.thread_time()
        result = call()
        times.append(time.thread_time() - start)
    return median(times), result


def print_speed(repeat: int) -> None:
    """Part 1."""
    print(f"{NUM_LENGTHS:,} lengths, {COUNT} buckets; target {TARGET_SECONDS} s")
    print(f"{'longest':>8} {'granule':>8} {'seconds':>9} {'full search':>12} {'ratio':>7}  target")
    rng = np.random.default_rng(0)
    for last, granule in ((8192, 1), (8192, 16), (32_768, 16)):
        lengths = rng.integers(1, last + 1, NUM_LENGTHS)
        fit = partial(optimal_buckets, lengths, COUNT, max_num_batched_tokens=last, granule=granule)
        seconds, ladder = cpu_seconds(fit, repeat)
        with patch.object(ladders, "_search_by_halves", ladders._search_all):
            full, same = cpu_seconds(fit, repeat)
        if pad_lengths(lengths, ladder).sum() != pad_lengths(lengths, same).sum():
            raise RuntimeError(f"the two searches differ: {ladder} and {same}")
        met = "met" if seconds < TARGET_SECONDS else "MISSED"
        print(
            f"{last:>8} {granule:>8} {seconds:>9.4f} {full:>12.4f} {full / seconds:>6.1f}x  {met}",
            flush=True,
        )


def print_waste(name: str) -> None:
    """Part 2."""
    lengths = azure_lengths(name)
    if lengths is None:
        print(f"\n{MISSING.format(name=name)}: no figures on waste")
        return
    last = MAX_NUM_BATCHED_TOKENS
    chunks = chunk_lengths(lengths[:, 0], last)
    print(f"\n{name}: {len(chunks):,} chunks of at most {last} tokens; share that is padding")
    print(f"{'ladder':<24} {'graphs':>6} {'usual':>7} {'best':>7} {'held out':>9}")
    for score in compare_ladders(chunks, usual_ladders(last)):
        fit = partial(
            optimal_buckets, count=score.num_graphs, max_num_batched_tokens=last, granule=16
        )
        held_out = evaluate_held_out(chunks, fit)
        print(
            f"{score.name:<24} {score.num_graphs:>6} {score.waste:>7.1%} "
            f"{padding_waste(chunks, fit(chunks)):>7.1%} {held_out.test_waste:>9.1%}"
        )


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs a figure (%(default)s)")
    args = parser.parse_args()
    print_speed(args.repeat)
    for name in ("azure_code", "azure_conv"):
        print_waste(name)


if __name__ == "__main__":
    main()
