"""The verbs `simulate`, `buckets`, `sweep` and `compare`: experiments on a trace file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings.arguments import check_ints, check_positive, check_setting, refusal
from .options import (
    check_readable,
    check_writable,
    suggest,
)
from .schedulers import SCHEDULERS, load_scheduler
from .settings import read_grid, read_settings, read_setup

if TYPE_CHECKING:
    from ..reports.experiment_page import Experiment
    from ..trace.metrics import SLO
    from ..workloads.workload import Workload

SETTING = "NAME=VALUE"

SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")

ALL_CORES = -1
"""What joblib takes for as many processes as there are cores."""


def add_verbs(verbs: argparse._SubParsersAction) -> None:
    """Add them."""
    _add_simulate(verbs)
    _add_buckets(verbs)
    _add_sweep(verbs)
    _add_compare(verbs)


def _add_simulate(verbs: argparse._SubParsersAction) -> None:
    parser = _add(
        verbs, "simulate", _simulate, "run a trace through a scheduler, in simulated time"
    )
    _add_engine(parser)
    _add_set(parser)


def _simulate(args: argparse.Namespace) -> int:
    from ..experiments import one_run

    settings = _engine(args) | read_settings(args.set)
    return _show(args, one_run(settings, _workload(args), slo=_slo(args)))


def _add_buckets(verbs: argparse._SubParsersAction) -> None:
    parser = _add(
        verbs, "buckets", _buckets, "fit a ladder of prefill buckets to a trace's prompts"
    )
    parser.add_argument("--count", type=int, default=7, help="most buckets (%(default)s)")
    parser.add_argument(
        "--granule", type=int, default=16, help="buckets are multiples of it (%(default)s)"
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=8192, help="the last bucket (%(default)s)"
    )


def _buckets(args: argparse.Namespace) -> int:
    from ..experiments import fit_ladder, ladders

    check_ints(**{"--count": args.count})
    check_ints(**{"--granule": args.granule})
    check_setting("max_num_batched_tokens", args.max_num_batched_tokens)
    options = {"max_num_batched_tokens": args.max_num_batched_tokens, "granule": args.granule}
    workload = _workload(args)
    experiment = ladders(workload, count=args.count, **options)
    _show(args, experiment)
    ladder, waste = fit_ladder(workload, args.count, **options)
    print(f"\nFitted to the whole trace ({waste:.1%} padding):")
    print(f"num_batched_tokens_buckets: {ladder}")
    return 0


def _add_sweep(verbs: argparse._SubParsersAction) -> None:
    parser = _add(verbs, "sweep", _sweep, "simulate every combination of settings, resumably")
    _add_engine(parser)
    parser.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="NAME=VALUE,VALUE,...",
        help="values to try of one setting; give it again for another",
    )
    parser.add_argument(
        "--results",
        metavar="FILE.jsonl",
        help="keep finished cells here; the same command then goes on where it was",
    )
    parser.add_argument("--retry-failed", action="store_true", help="run failed cells again")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes; -1: one a core (%(default)s)"
    )
    parser.add_argument(
        "--figure",
        default="output_tokens_per_second",
        help="figure to plot, such as ttft_p99 (%(default)s)",
    )


def _sweep(args: argparse.Namespace) -> int:
    from ..experiments import show_sweep
    from ..experiments.sweeps import sweep
    from ..reports.tables import table_to_text

    grid = read_grid(args.set)
    _check_figure(args.figure)
    if args.jobs != ALL_CORES:
        check_ints(**{"--jobs": args.jobs})
    if args.results is not None:
        check_writable("--results", args.results)
    result = sweep(
        grid,
        _workload(args),
        results=args.results,
        retry_failed=args.retry_failed,
        n_jobs=args.jobs,
        slo=_slo(args),
        **{name: value for name, value in _engine(args).items() if name not in grid},
    )
    print(result)
    if len(result.failures):
        print(f"\nFailed:\n{table_to_text(result.failures)}\n")
    if len(result.table):
        experiment = show_sweep(result, list(grid), args.figure)
        return _show(args, experiment) or (1 if len(result.failures) else 0)
    return 1


def _check_figure(name: str) -> None:
    """Refuse a figure that no cell will have, before they run."""
    from ..trace.metrics import Metrics
    from ..trace.run_log import RunLog

    figures = Metrics.of(RunLog()).as_dict()
    if name not in figures:
        raise ValueError(f"--figure: {name!r} is no figure; {suggest(name, figures)}")


def _add_compare(verbs: argparse._SubParsersAction) -> None:
    parser = _add(
        verbs, "compare", _compare, "find the first step at which two schedulers decide otherwise"
    )
    setup = "a scheduler, or NAME=VALUE,... (kv_admission=banker), or both with commas"
    parser.add_argument("a", metavar="A", help=setup)
    parser.add_argument("b", metavar="B", help="the same")
    parser.add_argument(
        "--ignore-padding", action="store_true", help="another padded size is no difference"
    )
    _add_engine(parser)
    _add_set(parser)


def _compare(args: argparse.Namespace) -> int:
    from ..experiments.comparison import compare

    a, b = read_setup(args.a), read_setup(args.b)
    names = (args.a, args.b) if args.a != args.b else (f"{args.a} (a)", f"{args.b} (b)")
    common = _engine(args) | read_settings(args.set)
    diff = compare(
        a,
        b,
        _workload(args),
        names=names,
        slo=_slo(args),
        padding=not args.ignore_padding,
        **common,
    )
    return _show(args, diff)


# What they have in common


def _add(
    verbs: argparse._SubParsersAction,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    trace = parser.add_argument_group("trace")
    trace.add_argument("--trace", required=True, metavar="FILE", help="any format that is known")
    trace.add_argument("--format", default="auto", help="its format (%(default)s)")
    trace.add_argument("--requests", type=int, help="only the first so many")
    trace.add_argument("--scale", type=float, default=1, help="speed of arrivals (%(default)s)")
    trace.add_argument("--skip-bad-rows", action="store_true", help="leave bad rows out")
    parser.add_argument(
        "--report", metavar="FILE", help="write a report: FILE.html or FILE.png (plot only)"
    )
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--scheduler",
        default="NeuronScheduler",
        help=f"one of {', '.join(SCHEDULERS)}, or module.Class of your own (%(default)s)",
    )
    for name, default, text in (
        ("--max-num-seqs", 32, "running requests"),
        ("--max-num-batched-tokens", 8192, "tokens a step"),
        ("--max-model-len", 16384, "longest sequence, tokens"),
        ("--block-size", 32, "tokens in a KV block"),
    ):
        engine.add_argument(name, type=int, default=default, help=f"{text} (%(default)s)")
    engine.add_argument("--kv-tokens", type=int, help="size of the KV cache (as much as needed)")
    engine.add_argument(
        "--model", default="llama-3.1-8b", help="whose step times to use (%(default)s)"
    )
    engine.add_argument("--tp-degree", type=int, default=8, help="its logical cores (%(default)s)")
    goals = parser.add_argument_group("service level, for goodput")
    goals.add_argument("--slo-ttft", type=float, metavar="SECONDS", help="time to first token")
    goals.add_argument("--slo-tpot", type=float, metavar="SECONDS", help="time per output token")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar=SETTING,
        help="another setting of the simulation or of neuron_config, such as kv_admission=banker",
    )


def _workload(args: argparse.Namespace) -> Workload:
    from ..workloads.file_formats import FORMATS
    from ..workloads.workload import Workload

    if args.report is not None:
        from ..reports.experiment_page import check_path

        check_path(args.report)
        check_writable("--report", args.report)
    check_readable("--trace", args.trace)
    if args.format not in {"auto", *FORMATS}:
        raise ValueError(
            f"--format: {args.format!r} is no format; {suggest(args.format, ['auto', *FORMATS])}"
        )
    if args.requests is not None:
        check_ints(**{"--requests": args.requests})
    check_positive(**{"--scale": args.scale})
    workload = Workload.read(
        args.trace,
        args.format,
        max_requests=args.requests,
        on_bad_row="skip" if args.skip_bad_rows else "error",
    )
    if not len(workload):
        raise ValueError(f"{args.trace}: there is no request in it; give a trace with some")
    workload = workload.scale(args.scale)
    print(workload.describe(), flush=True)
    return workload


def _engine(args: argparse.Namespace) -> dict[str, Any]:
    from ..simulation.bare_scheduler import MAX_KV_BLOCKS
    from ..simulation.roofline import MODELS, RooflineCostModel

    if args.model not in MODELS:
        raise ValueError(f"--model: {args.model!r} is no model; {suggest(args.model, MODELS)}")
    check_ints(**{"--tp-degree": args.tp_degree})
    sizes = {name: getattr(args, name) for name in SIZES}
    for name, value in sizes.items():
        check_setting(name, value)
    settings: dict[str, Any] = {
        "scheduler": load_scheduler(args.scheduler),
        "cost_model": RooflineCostModel(
            args.model, tp_degree=args.tp_degree, max_model_len=args.max_model_len
        ),
    }
    if args.kv_tokens is not None:
        if args.kv_tokens < args.block_size:
            raise ValueError(
                f"--kv-tokens: {args.kv_tokens} must hold a block of {args.block_size} tokens; "
                f"raise it"
            )
        if args.kv_tokens > (most := (MAX_KV_BLOCKS - 1) * args.block_size):
            raise refusal("--kv-tokens", args.kv_tokens, f"at most {most}", "lower it")
        # One block more: vLLM keeps the null block.
        settings["num_kv_blocks"] = args.kv_tokens // args.block_size + 1
    return settings | sizes


def _slo(args: argparse.Namespace) -> SLO | None:
    from ..trace.metrics import SLO

    for option, value in (("--slo-ttft", args.slo_ttft), ("--slo-tpot", args.slo_tpot)):
        if value is not None:
            check_positive(**{option: value})
    if args.slo_ttft is None and args.slo_tpot is None:
        return None
    return SLO(ttft=args.slo_ttft, tpot=args.slo_tpot)


def _show(args: argparse.Namespace, experiment: Experiment) -> int:
    print(f"\n{experiment}")
    if args.report:
        experiment.save(args.report)
        print(f"\nReport: {Path(args.report)}")
    return 1 if experiment.failed else 0
