"""`neuron-sched-lab`: one command, the verbs below it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..settings.environment import prepare_environment
from . import demo, experiments, machine, notebooks
from .schedulers import SCHEDULERS, load_scheduler

__all__ = ["SCHEDULERS", "load_scheduler", "main"]

VERBS = (demo, experiments, notebooks, machine)
"""Modules that add verbs, in the order in which help lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit status: 0, 1 for a failed check, 2 for bad input."""
    args = _parser().parse_args(argv)
    try:
        # Before any verb imports vLLM, whose log would else mix with our own output.
        prepare_environment()
        return args.run(args)
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does; Python would flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError) as error:
        # One line: vLLM's own messages take several.
        print(f"neuron-sched-lab {args.verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neuron-sched-lab", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in VERBS:
        module.add_verbs(verbs)
    return parser
