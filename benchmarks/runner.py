"""Our worker beside vLLM's own CPU worker and transformers, on the same prompts, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.runner [--rounds 6] [--tokens 32] [--quick]

The engines live side by side in one process and take turns, round by round. A schedule repeats
exactly, so every step is known by its number: what counts is its CPU time in the best round, which
a busy machine disturbs least. One thread, greedy, float32, no prefix caching, the Lab's defaults:
4 sequences, chunks of 256 tokens, prefill buckets 128 and 256.

- prefill, decode: prompt tokens a second of prefill steps, output tokens a second of decode steps;
  vLLM's own scheduler mixes the two in a step;
- padded: tokens that a worker computes in prefill steps for each prompt token. Ours computes the
  padding, as a Trn2 must; vLLM's has no buckets and computes 1. So prefill is compared twice: per
  prompt token, which is what a user gets, and per token computed, which is how fast the code is;
- all: output tokens a second of everything;
- TTFT: milliseconds to the first token of a prompt that has the engine to itself, the median one;
- start: seconds from `python` to the first token, best of two fresh processes each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_PROMPTS, LONGEST = 60, 1900
NUM_FOR_TRANSFORMERS = 12
"""Prompts that transformers generates for: one at a time, it takes longest."""

FINE_BUCKETS = tuple(range(16, 257, 16))
"""A second ladder with hardly any padding, to see what padding to the default one costs."""

STARTS = {"neuron": "our worker", "vllm": "vLLM's CPU worker", "transformers": "transformers"}


def make_prompts() -> list[list[int]]:
    """60 prompts of 1 to 1,900 random tokens, most of them short."""
    rng = random.Random(0)
    lengths = [round(LONGEST ** (i / (NUM_PROMPTS - 1))) for i in range(NUM_PROMPTS)]
    rng.shuffle(lengths)
    return [[rng.randrange(3, 98) for _ in range(length)] for length in lengths]


class Step(NamedTuple):
    """One step of an engine.

    Attributes:
        seconds: CPU time.
        phase: prefill, decode or mixed.
        num_tokens: scheduled.
        num_padded_tokens: computed by a worker that pads.
    """

    seconds: float
    phase: str
    num_tokens: int
    num_padded_tokens: int


class Engine:
    """A vLLM engine of the Lab's default shape.

    Attributes:
        name: the worker and the scheduler.
        pads: whether the worker computes padding.
        steps: of each round, every step.
        alone: of each round, CPU seconds that every prompt took alone, for one token.
    """

    def __init__(
        self,
        worker: str,
        scheduler: type,
        prompts: list[list[int]],
        buckets: Sequence[int] | None = None,
    ) -> None:
        from neuron_sched_lab.engine import lab as lab_module

        lab_module.MAX_RECORDED_INPUTS = 0  # a Lab writes down our tensors, which is not work
        label = {"neuron": "our worker", "vllm": "vLLM's CPU worker"}[worker]
        self.name = f"{label}, {scheduler.__name__}"
        self.pads = worker == "neuron"
        neuron_config = {}
        if buckets is not None:
            self.name = f"{label}, prefill buckets from {buckets[0]}"
            neuron_config["num_batched_tokens_buckets"] = list(buckets)
        self.prompts = prompts
        self.steps: list[list[Step]] = []
        self.alone: list[list[float]] = []
        self._lab = lab_module.Lab(
            scheduler, worker=worker, enable_prefix_caching=False, neuron_config=neuron_config
        )

    def run_round(self, num_tokens: int) -> None:
        """Take one turn."""
        self.steps.append(self.run(self.prompts, 1 + num_tokens))
        alone = [sum(step.seconds for step in self.run([p], 1)) for p in self.prompts]
        self.alone.append(alone)

    def run(self, prompts: Sequence[list[int]], num_tokens: int) -> list[Step]:
        """Run prompts to the end; return every step."""
        lab = self._lab
        for prompt in prompts:
            lab.add(prompt, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        steps = []
        before = time.thread_time()
        while (record := lab.step()) is not None:
            after = time.thread_time()
            counts = record.num_tokens, record.num_padded_tokens
            steps.append(Step(after - before, record.phase, *counts))
            before = time.thread_time()
        return steps

    def report(self, num_tokens: int) -> dict[str, float]:
        """Return the figures, by column; nothing for a phase that has no step of its own."""
        best = [min(same, key=lambda s: s.seconds) for same in zip(*self.steps, strict=True)]
        seconds = dict.fromkeys(("prefill", "decode"), 0.0)
        for step in best:
            seconds[step.phase] = seconds.get(step.phase, 0.0) + step.seconds
        num_prompt, num_output = sum(map(len, self.prompts)), len(self.prompts) * num_tokens
        figures = {
            "all": (num_output + len(self.prompts)) / sum(seconds.values()),
            "TTFT": 1000 * median(map(min, zip(*self.alone, strict=True))),
        }
        if "mixed" not in seconds:
            prefills = [step for step in best if step.phase == "prefill"]
            computed = sum(s.num_padded_tokens if self.pads else s.num_tokens for s in prefills)
            figures["prefill"] = num_prompt / seconds["prefill"]
            figures["padded"] = computed / num_prompt
            figures["decode"] = num_output / seconds["decode"]
        return figures


class Transformers:
    """transformers' generate, one prompt at a time."""

    name = "transformers, one at a time"

    def __init__(self, prompts: list[list[int]]) -> None:
        import torch
        from transformers import LlamaForCausalLM

        from neuron_sched_lab.tiny_model.tasks import tiny_model_path

        self.prompts = prompts[:NUM_FOR_TRANSFORMERS]
        self.first: list[list[float]] = []
        self.all: list[list[float]] = []
        self._model = LlamaForCausalLM.from_pretrained(tiny_model_path(), dtype=torch.float32)

    def run_round(self, num_tokens: int) -> None:
        """Take one turn."""
        self.first.append([self.run([p], 1) for p in self.prompts])
        self.all.append([self.run([p], 1 + num_tokens) for p in self.prompts])

    def run(self, prompts: Sequence[list[int]], num_tokens: int) -> float:
        """Generate; return the CPU seconds."""
        import torch

        before = time.thread_time()
        with torch.inference_mode():
            for prompt in prompts:
                ids = torch.tensor([prompt])
                self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=num_tokens,
                    min_new_tokens=num_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )
        return time.thread_time() - before

    def report(self, num_tokens: int) -> dict[str, float]:
        """Return the figures, by column."""
        first = [min(seconds) for seconds in zip(*self.first, strict=True)]
        everything = [min(seconds) for seconds in zip(*self.all, strict=True)]
        num_output = len(self.prompts) * num_tokens
        return {
            "prefill": sum(map(len, self.prompts)) / sum(first),
            "decode": num_output / (sum(everything) - sum(first)),
            "all": (num_output + len(self.prompts)) / sum(everything),
            "TTFT": 1000 * median(first),
        }


def measure_start(engine: str) -> dict[str, float]:
    """Start a fresh process that generates one token; return its wall and CPU seconds."""
    before = time.time()
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.runner", "--first-token", engine],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    reached = json.loads(answer.stdout.splitlines()[-1])
    return {"wall": reached["time"] - before, "cpu": reached["cpu"], "engine": reached["engine"]}


def reach_first_token(engine: str) -> None:
    """The fresh process: import, start, generate one token, say when."""
    from neuron_sched_lab import NeuronScheduler
    from neuron_sched_lab.settings.environment import prepare_environment

    prepare_environment()
    prompts = [[5] * 100]
    if engine != "transformers":
        import vllm  # noqa: F401  (its import is not the engine's start)
    before = time.process_time()
    if engine == "transformers":
        measured: Engine | Transformers = Transformers(prompts)
    else:
        measured = Engine(engine, NeuronScheduler, prompts)
    started = time.process_time() - before
    measured.run(prompts, 1)
    print(json.dumps({"time": time.time(), "cpu": time.process_time(), "engine": started}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32, help="output tokens for decode")
    parser.add_argument("--quick", action="store_true", help="one round, no fresh processes")
    parser.add_argument("--first-token", choices=STARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first_token:
        reach_first_token(args.first_token)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from vllm.v1.core.sched.scheduler import Scheduler

    from neuron_sched_lab import NeuronAsyncScheduler, NeuronScheduler

    prompts = make_prompts()
    engines = [
        Engine("neuron", NeuronScheduler, prompts),
        Engine("neuron", NeuronScheduler, prompts, FINE_BUCKETS),
        Engine("neuron", NeuronAsyncScheduler, prompts),
        Engine("vllm", NeuronScheduler, prompts),
        Engine("vllm", Scheduler, prompts),
        Transformers(prompts),
    ]
    for engine in engines:
        engine.run(prompts[:4], 4)  # warm up: work done once must not count
    for _ in range(1 if args.quick else args.rounds):
        for engine in engines:
            engine.run_round(args.tokens)
    print_throughput({engine.name: engine.report(args.tokens) for engine in engines})
    if not args.quick:
        print_starts()


def print_throughput(reports: dict[str, dict[str, float]]) -> None:
    """Print one line an engine, and ours against vLLM's workers."""
    columns = {"prefill": ",.0f", "padded": ".2f", "decode": ",.0f", "all": ",.0f", "TTFT": ".2f"}
    print(f"{'':40}" + "".join(f"{column:>12}" for column in columns))
    for name, report in reports.items():
        cells = [format(report[c], f) if c in report else "-" for c, f in columns.items()]
        print(f"{name:40}" + "".join(f"{cell:>12}" for cell in cells))
    for our_name, ours in reports.items():
        for their_name, theirs in reports.items():
            if our_name.startswith("our") and their_name.startswith("vLLM"):
                print(f"{our_name} / {their_name}: {', '.join(compare(ours, theirs))}")


def compare(ours: dict[str, float], theirs: dict[str, float]) -> list[str]:
    """Return our figures as multiples of theirs."""
    ratios = {c: ours[c] / theirs[c] for c in ("prefill", "decode", "all", "TTFT") if c in theirs}
    if "prefill" in ratios:
        padding = ours["padded"] / theirs["padded"]
        ratios["prefill per token computed"] = ratios["prefill"] * padding
    return [f"{name} {ratio:.2f}x" for name, ratio in ratios.items()]


def print_starts() -> None:
    """Print how long fresh processes take to their first token."""
    print(f"\n{'start':40}{'wall s':>10}{'CPU s':>10}{'engine CPU s':>15}")
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in STARTS}
    for _ in range(2):
        for engine, found in runs.items():
            found.append(measure_start(engine))
    for engine, found in runs.items():
        best = {key: min(run[key] for run in found) for key in found[0]}
        print(f"{STARTS[engine]:40}{best['wall']:10.2f}{best['cpu']:10.2f}{best['engine']:15.2f}")


if __name__ == "__main__":
    main()
