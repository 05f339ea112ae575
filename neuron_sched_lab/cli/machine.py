"""Verbs for the machine: `doctor`, `kernelspec` and `trn2-check`."""

from __future__ import annotations

import argparse


def add_verbs(verbs: argparse._SubParsersAction) -> None:
    """Add them."""
    _add_doctor(verbs)
    _add_kernelspec(verbs)
    _add_trn2_check(verbs)


def _add_doctor(verbs: argparse._SubParsersAction) -> None:
    doctor = verbs.add_parser(
        "doctor", help="is this machine ready for the lessons? Each failure with its fix"
    )
    doctor.set_defaults(run=_doctor)
    doctor.add_argument("--no-live", action="store_true", help="do not start an engine")


def _doctor(args: argparse.Namespace) -> int:
    from ..lab.doctor import run

    return run(live=not args.no_live)


def _add_kernelspec(verbs: argparse._SubParsersAction) -> None:
    kernelspec = verbs.add_parser(
        "kernelspec", help="install or remove the two Jupyter kernelspecs, for CPU and for Trn2"
    )
    kernelspec.set_defaults(run=_kernelspec)
    kernelspec.add_argument("action", choices=("install", "remove"))
    kernelspec.add_argument("--prefix", help="into this environment, such as the folder of a venv")


def _kernelspec(args: argparse.Namespace) -> int:
    from ..kernels import jupyter

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
    from ..lab.trn2_check import run

    return run(args.report)
