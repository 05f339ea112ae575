"""The verb `demo`."""

from __future__ import annotations

import argparse
import sys

from .options import check_readable
from .schedulers import SCHEDULERS, load_scheduler


def add_verbs(verbs: argparse._SubParsersAction) -> None:
    """Add `demo`."""
    demo = verbs.add_parser(
        "demo", help="run prompts live, step by step, and compare with vLLM's own scheduler"
    )
    demo.set_defaults(run=_demo)
    demo.add_argument(
        "--scheduler",
        default="NeuronScheduler",
        help=f"one of {', '.join(SCHEDULERS)}, or module.Class of your own (%(default)s)",
    )
    demo.add_argument("--requests", metavar="FILE.jsonl", help="prompts, one JSON object a line")
    demo.add_argument(
        "--model", default="tiny", help='"tiny" or a Hugging Face Llama directory (%(default)s)'
    )
    demo.add_argument("--max-num-seqs", type=int, default=4, help="running requests (%(default)s)")
    demo.add_argument(
        "--max-num-batched-tokens", type=int, default=256, help="tokens a step (%(default)s)"
    )
    demo.add_argument(
        "--max-model-len", type=int, default=2048, help="longest sequence, tokens (%(default)s)"
    )


def _demo(args: argparse.Namespace) -> int:
    from ..engine.live_run import DemoStoppedError, default_requests, read_requests, run_demo

    if args.requests is None:
        requests = default_requests()
    else:
        check_readable("--requests", args.requests)
        requests = read_requests(args.requests)
    try:
        same = run_demo(
            load_scheduler(args.scheduler),
            requests,
            model=args.model,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_model_len=args.max_model_len,
        )
    except DemoStoppedError as error:
        print(f"neuron-sched-lab demo: {error}", file=sys.stderr)
        return 1
    return 0 if same else 1
