"""How many requests each KV admission policy runs at once on the lengths of real traces.

    python -m benchmarks.kv_admission [--requests 300] [--max-tokens 1024]

The first requests of each Azure LLM inference trace of 2023 (see tests/scheduler/traces.py) wait at
the start; the real scheduler, with no model, runs them to the end. Each asks for `--max-tokens` and
stops where the trace says (or asks for exactly that, with 0): what it declares is what the policies
go by. Counted, not timed: a decode step costs a device about the same whether one request is in it
or sixteen, so tokens per decode step is what a policy gains. The baseline is worst_case.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from neuron_sched_lab import NeuronScheduler
from neuron_sched_lab.scheduler.kv_policies import KV_ADMISSION_POLICIES
from tests.scheduler.factory import make_request, make_scheduler
from tests.scheduler.traces import MISSING, azure_lengths

BLOCK_SIZE = 32
MAX_MODEL_LEN = 16_384
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 8192
GO_ON, STOP = 7, 0


class Figures(NamedTuple):
    """What a run came to."""

    num_decode_steps: int
    num_decode_tokens: int
    num_held_back: int
    most_running: int
    num_preempted: int


def run(lengths: np.ndarray, max_tokens: int, policy: str, num_blocks: int) -> Figures:
    """Run requests of (prompt, output) lengths [n, 2] to the end."""
    scheduler = make_scheduler(
        NeuronScheduler,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        num_blocks=num_blocks + 1,
        block_size=BLOCK_SIZE,
        neuron_config={"kv_admission": policy},
    )
    left = {}
    for i, (num_prompt, num_output) in enumerate(lengths.tolist()):
        left[f"r{i}"] = num_output
        declared = max(max_tokens, num_output)
        request = make_request(
            f"r{i}", num_prompt, declared, block_size=BLOCK_SIZE, stop_token_ids=[STOP]
        )
        scheduler.add_request(request)
    steps = tokens = held = most = preempted = 0
    while scheduler.requests:
        output = scheduler.schedule()
        if not scheduler.scheduled_prefills:
            steps += 1
            tokens += output.total_num_scheduled_tokens
            held += len(scheduler.held_decodes)
        most = max(most, len(scheduler.running))
        preempted += len(output.preempted_req_ids or ())
        finish_step(scheduler, output, left)
    return Figures(steps, tokens, held, most, preempted)


def finish_step(scheduler: NeuronScheduler, output: SchedulerOutput, left: dict[str, int]) -> None:
    """Answer for every request that is not in the middle of its prompt; STOP as its last token."""
    ids = list(output.num_scheduled_tokens)
    sampled = []
    for request_id in ids:
        if scheduler.requests[request_id].is_prefill_chunk:
            sampled.append([])
            continue
        left[request_id] -= 1
        sampled.append([GO_ON if left[request_id] else STOP])
    index = {request_id: i for i, request_id in enumerate(ids)}
    scheduler.update_from_output(output, ModelRunnerOutput(ids, index, sampled))


def main() -> None:
    """Print a table for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=300, help="of each trace (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=1024, help="declared (%(default)s)")
    args = parser.parse_args()
    for name in ("azure_code", "azure_conv"):
        lengths = azure_lengths(name)
        if lengths is None:
            print(f"{MISSING.format(name=name)}: no figures")
            continue
        print(
            f"\n{name}, {args.requests} requests, max_tokens {args.max_tokens}, max_num_seqs "
            f"{MAX_NUM_SEQS}, max_model_len {MAX_MODEL_LEN}\n{'KV tokens':>10} {'policy':<12} "
            f"{'most running':>12} {'tokens/decode step':>19} {'ratio':>6} {'held back':>10} "
            f"{'preempted':>10}"
        )
        for num_requests in (2, 4, 8):
            num_blocks = num_requests * MAX_MODEL_LEN // BLOCK_SIZE
            baseline = None
            for policy in KV_ADMISSION_POLICIES:
                figures = run(lengths[: args.requests], args.max_tokens, policy, num_blocks)
                batch = figures.num_decode_tokens / figures.num_decode_steps
                baseline = baseline or batch
                held = figures.num_held_back / (figures.num_decode_tokens + figures.num_held_back)
                print(
                    f"{num_blocks * BLOCK_SIZE:>10} {policy:<12} {figures.most_running:>12} "
                    f"{batch:>19.2f} {batch / baseline:>5.2f}x {held:>10.1%} "
                    f"{figures.num_preempted:>10}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
