"""The verbs `solve` and `reset`."""

from __future__ import annotations

import argparse


def add_verbs(verbs: argparse._SubParsersAction) -> None:
    """Add the verbs that put the solutions of exercises into notebooks, and take work out."""
    for verb, text in (
        ("solve", "put the solutions into a notebook's exercise cells"),
        ("reset", "take all work out of a notebook's exercise cells, and its outputs"),
    ):
        parser = verbs.add_parser(verb, help=f"{text}; work of your own is saved first")
        parser.set_defaults(run=_change_exercises)
        parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="NAME.ipynb")


def _change_exercises(args: argparse.Namespace) -> int:
    from ..course import exercises

    change = exercises.solve if args.verb == "solve" else exercises.reset
    # All are looked at first, so that a wrong one leaves none half done.
    for notebook in args.notebooks:
        exercises.get_status(notebook)
    for notebook in args.notebooks:
        saved = change(notebook)
        done = "solved" if args.verb == "solve" else "holds the skeletons"
        print(f"{notebook}: {done}" + (f"; your work is in {saved}" if saved else ""))
    print("Where one is open in JupyterLab: File > Reload Notebook from Disk.")
    return 0
