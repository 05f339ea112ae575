"""`neuron-sched-lab`: one command, the verbs below it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

SCHEDULERS = (
    "NeuronScheduler",
    "NeuronAsyncScheduler",
    "KVAdmissionScheduler",
    "PaddedScheduler",
    "SeparatedScheduler",
    "HoldbackScheduler",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit status: 0, 1 for a failed check, 2 for bad input."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"neuron-sched-lab {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neuron-sched-lab", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_demo(verbs)
    _add_kernelspec(verbs)
    _add_trn2_check(verbs)
    _add_exercises(verbs)
    return parser


def _add_demo(verbs: argparse._SubParsersAction) -> None:
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
    from .lab.demo import default_requests, read_requests, run_demo

    requests = read_requests(args.requests) if args.requests else default_requests()
    same = run_demo(
        load_scheduler(args.scheduler),
        requests,
        model=args.model,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
    )
    return 0 if same else 1


def _add_exercises(verbs: argparse._SubParsersAction) -> None:
    """Add the verbs that put the solutions of exercises into notebooks, and take work out."""
    for verb, text in (
        ("solve", "put the solutions into a notebook's exercise cells"),
        ("reset", "take all work out of a notebook's exercise cells, and its outputs"),
    ):
        parser = verbs.add_parser(verb, help=f"{text}; work of your own is saved first")
        parser.set_defaults(run=_change_exercises)
        parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="NAME.ipynb")


def _change_exercises(args: argparse.Namespace) -> int:
    from .lab import exercises

    change = exercises.solve if args.verb == "solve" else exercises.reset
    for notebook in args.notebooks:
        saved = change(notebook)
        done = "solved" if args.verb == "solve" else "holds the skeletons"
        print(f"{notebook}: {done}" + (f"; your work is in {saved}" if saved else ""))
    print("Where one is open in JupyterLab: File > Reload Notebook from Disk.")
    return 0


def _add_kernelspec(verbs: argparse._SubParsersAction) -> None:
    kernelspec = verbs.add_parser(
        "kernelspec", help="install or remove the two Jupyter kernelspecs, for CPU and for Trn2"
    )
    kernelspec.set_defaults(run=_kernelspec)
    kernelspec.add_argument("action", choices=("install", "remove"))
    kernelspec.add_argument("--prefix", help="into this environment, such as the folder of a venv")


def _kernelspec(args: argparse.Namespace) -> int:
    from .kernels import jupyter

    folders = jupyter.install(prefix=args.prefix) if args.action == "install" else jupyter.remove()
    for folder in folders:
        print(f"{args.action}: {folder}")
    return 0


def _add_trn2_check(verbs: argparse._SubParsersAction) -> None:
    check = verbs.add_parser(
        "trn2-check", help="on a Trn2: check the kernels and the quickstart, and write a report"
    )
    check.set_defaults(run=_trn2_check)
    check.add_argument("--report", default="trn2-check.txt", help="file to write (%(default)s)")


def _trn2_check(args: argparse.Namespace) -> int:
    from .lab.trn2_check import run

    return run(args.report)


def load_scheduler(name: str) -> type:
    """Return the scheduler class called `name`: one of ours, or `module.Class`.

    Raises:
        ValueError: there is no such class, or it is no vLLM scheduler.
    """
    from .lab.environment import prepare_environment

    prepare_environment()
    from vllm.v1.core.sched.interface import SchedulerInterface

    module_name, _, class_name = name.rpartition(".")
    try:
        module = import_module(module_name or "neuron_sched_lab")
    except ImportError as error:
        raise ValueError(
            f"scheduler: {name!r}: module {module_name!r} does not import ({error}); is its folder "
            f"in PYTHONPATH?"
        ) from error
    cls = getattr(module, class_name, None)
    if not (isinstance(cls, type) and issubclass(cls, SchedulerInterface)):
        raise ValueError(
            f"scheduler: {name!r} is no vLLM scheduler class; choose one of "
            f"{', '.join(SCHEDULERS)} or give module.Class"
        )
    return cls
