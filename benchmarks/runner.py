"""Our worker beside vLLM's own CPU worker and transformers, on the same prompts, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.runner [--rounds 8] [--tokens 48] [--quick]

The engines live side by side in one process and take turns, round by round, so that a busy moment
of the machine hits all alike. One thread; medians over the rounds of CPU time, which a busy
machine disturbs less than wall time. Greedy, float32, no prefix caching, the Lab's defaults: 4
sequences, chunks of 256 tokens.

- prefill: prompt tokens per second, all prompts queued at once, one output token each;
- decode: output tokens per second, from the time that `--tokens` more for each prompt take;
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
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_PROMPTS, LONGEST = 60, 1900
NUM_FOR_TRANSFORMERS = 12
"""Prompts that transformers generates for: one at a time, it takes longest."""

STARTS = {"neuron": "our worker", "vllm": "vLLM's CPU worker", "transformers": "transformers"}


def make_prompts() -> list[list[int]]:
    """60 prompts of 1 to 1,900 random tokens, most of them short."""
    rng = random.Random(0)
    lengths = [round(LONGEST ** (i / (NUM_PROMPTS - 1))) for i in range(NUM_PROMPTS)]
    rng.shuffle(lengths)
    return [[rng.randrange(3, 98) for _ in range(length)] for length in lengths]


@dataclass
class Measured:
    """CPU seconds of every round.

    Attributes:
        generate: takes prompts and the number of output tokens of each.
        prompts: those that this engine gets.
    """

    name: str
    generate: Callable[[Sequence[list[int]], int], Any]
    prompts: list[list[int]]
    first: list[float] = field(default_factory=list)
    all_tokens: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)

    def run_round(self, num_tokens: int) -> None:
        """Take one turn."""
        self.first.append(cpu_seconds(self.generate, self.prompts, 1))
        self.all_tokens.append(cpu_seconds(self.generate, self.prompts, 1 + num_tokens))
        self.alone.append(median(cpu_seconds(self.generate, [p], 1) for p in self.prompts))

    def report(self, num_tokens: int) -> tuple[float, float, float]:
        """Return prefill and decode tokens per second, and TTFT in milliseconds."""
        return (
            sum(map(len, self.prompts)) / min(self.first),
            len(self.prompts) * num_tokens / (min(self.all_tokens) - min(self.first)),
            1000 * min(self.alone),
        )


def cpu_seconds(function: Callable[..., Any], *args: Any) -> float:
    """Return the CPU time of one call in this thread."""
    before = time.thread_time()
    function(*args)
    return time.thread_time() - before


def make_vllm_engine(worker: str, scheduler: type, prompts: list[list[int]]) -> Measured:
    """Start an engine of the Lab's default shape."""
    from vllm import SamplingParams, TokensPrompt

    from neuron_sched_lab import Lab

    lab = Lab(scheduler, worker=worker, enable_prefix_caching=False)

    def generate(wanted: Sequence[list[int]], num_tokens: int) -> None:
        params = SamplingParams(
            max_tokens=num_tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        lab.llm.generate([TokensPrompt(prompt_token_ids=p) for p in wanted], params, use_tqdm=False)
        lab.trace.records.clear()

    label = {"neuron": "our worker", "vllm": "vLLM's CPU worker"}[worker]
    return Measured(f"{label}, {scheduler.__name__}", generate, prompts)


def make_transformers(prompts: list[list[int]]) -> Measured:
    """Load the model in transformers; it generates for one prompt at a time."""
    import torch
    from transformers import LlamaForCausalLM

    from neuron_sched_lab.lab.tasks import tiny_model_path

    model = LlamaForCausalLM.from_pretrained(tiny_model_path(), dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(wanted: Sequence[list[int]], num_tokens: int) -> None:
        for prompt in wanted:
            ids = torch.tensor([prompt])
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
            )

    return Measured("transformers, one at a time", generate, prompts[:NUM_FOR_TRANSFORMERS])


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
    from neuron_sched_lab.lab.environment import prepare_environment

    prepare_environment()
    prompts = [[5] * 100]
    if engine == "transformers":
        before = time.process_time()
        measured = make_transformers(prompts)
    else:
        import vllm  # noqa: F401  (its import is not the engine's start)

        before = time.process_time()
        measured = make_vllm_engine(engine, NeuronScheduler, prompts)
    started = time.process_time() - before
    measured.generate(prompts, 1)
    print(json.dumps({"time": time.time(), "cpu": time.process_time(), "engine": started}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48, help="output tokens for decode")
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
        make_vllm_engine("neuron", NeuronScheduler, prompts),
        make_vllm_engine("neuron", NeuronAsyncScheduler, prompts),
        make_vllm_engine("vllm", NeuronScheduler, prompts),
        make_vllm_engine("vllm", Scheduler, prompts),
        make_transformers(prompts),
    ]
    for engine in engines:
        engine.generate(prompts[:4], 4)  # what happens once is no throughput
    for _ in range(1 if args.quick else args.rounds):
        for engine in engines:
            engine.run_round(args.tokens)
    print_throughput(engines, args.tokens)
    if not args.quick:
        print_starts()


def print_throughput(engines: Sequence[Measured], num_tokens: int) -> None:
    """Print one line an engine, and ours against vLLM's workers."""
    print(f"{'':40}{'prefill tok/s':>15}{'decode tok/s':>15}{'TTFT ms':>10}")
    reports = {engine.name: engine.report(num_tokens) for engine in engines}
    for name, (prefill, decode, ttft) in reports.items():
        print(f"{name:40}{prefill:15,.0f}{decode:15,.0f}{ttft:10.2f}")
    ours = reports[engines[0].name]
    for engine in engines[2:4]:
        theirs = reports[engine.name]
        print(
            f"ours / {engine.name}: prefill {ours[0] / theirs[0]:.2f}x, "
            f"decode {ours[1] / theirs[1]:.2f}x, TTFT {ours[2] / theirs[2]:.2f}x"
        )


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
