"""Checks of option values beyond what argparse does; each error names its option."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def check_readable(option: str, path: str) -> None:
    """Refuse a path that is not a readable file.

    Raises:
        ValueError: names the option, the path and why.
    """
    if not path or not Path(path).exists():
        raise ValueError(f"{option}: {path!r} does not exist; give the path of a file")
    if Path(path).is_dir():
        raise ValueError(f"{option}: {path!r} is a folder; give a file in it")
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise ValueError(
            f"{option}: {path!r} cannot be read ({error.strerror}); see its permissions"
        ) from error


def check_writable(option: str, path: str) -> None:
    """Refuse a file that cannot be written; to be asked before hours of work. Leaves no new file.

    Raises:
        ValueError: names the option, the path and why.
    """
    if not path or Path(path).is_dir():
        raise ValueError(f"{option}: {path!r} is no file name; give the path of a file")
    if not Path(path).parent.is_dir():
        raise ValueError(f"{option}: the folder {Path(path).parent} does not exist; make it first")
    existed = Path(path).exists()
    try:
        Path(path).open("ab").close()
        if not existed:
            Path(path).unlink()
    except OSError as error:
        raise ValueError(
            f"{option}: {path!r} cannot be written ({error.strerror}); choose another folder"
        ) from error


def suggest(name: str, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Return "did you mean" where something known is close, else what there is to choose from.

    Args:
        name: what the user wrote.
        known: all that there is.
        listed: the part of it to list; by default all.
    """
    known = list(known)
    if nearest := get_close_matches(name, known, n=1):
        return f"did you mean {nearest[0]!r}?"
    return f"choose one of {', '.join(known if listed is None else listed)}"
