"""Verbs for the machine: `doctor`, `kernelspec` and `trn2-check`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import check_writable


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
    from ..machine.doctor import run

    return run(live=not args.no_live)


def _add_kernelspec(verbs: argparse._SubParsersAction) -> None:
    kernelspec = verbs.add_parser(
        "kernelspec", help="install or remove the two Jupyter kernelspecs, for CPU and for Trn2"
    )
    kernelspec.set_defaults(run=_kernelspec)
    kernelspec.add_argument("action", choices=("install", "remove"))
    kernelspec.add_argument(
        "--prefix", help="into (or from) this environment, such as a venv's folder"
    )


def _kernelspec(args: argparse.Namespace) -> int:
    from ..kernels import jupyter

    prefix = args.prefix
    if prefix is not None and (not prefix or Path(prefix).is_file()):
        raise ValueError(f"--prefix: {prefix!r} is no folder; give one, or leave --prefix out")
    try:
        change = jupyter.install if args.action == "install" else jupyter.remove
        folders = change(prefix=prefix)
    except OSError as error:
        raise ValueError(
            f"--prefix: {prefix or 'the user folder'} cannot be written ({error}); choose another"
        ) from error
    for folder in folders:
        print(f"{args.action}: {folder}")
    if not folders:
        print(f"remove: nothing to remove{f' in {prefix}' if prefix else ''}")
    return 0


def _add_trn2_check(verbs: argparse._SubParsersAction) -> None:
    check = verbs.add_parser(
        "trn2-check", help="on a Trn2: check the kernels and the quickstart, and write a report"
    )
    check.set_defaults(run=_trn2_check)
    check.add_argument("--report", default="trn2-check.txt", help="file to write (%(default)s)")


def _trn2_check(args: argparse.Namespace) -> int:
    from ..machine.trn2_check import run

    check_writable("--report", args.report)
    return run(args.report)
