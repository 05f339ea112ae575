"""Runs a learner's code so that whatever it does is a finding: it raises, loops, or is missing."""

from __future__ import annotations

import inspect
import linecache
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .result import NOT_RIGHT, NOT_SOLVED, CheckResult

MAX_CPU_SECONDS = 3.0
"""For one call of the learner's code, which takes milliseconds; longer means an endless loop."""

MAX_CPU_SECONDS_OF_A_RUN = 10.0
"""The same of code that runs a whole engine."""


class EndlessLoopError(BaseException):
    """Raised inside an endless loop; not an Exception, which the loop's `except` might catch."""


FINDINGS = (Exception, EndlessLoopError)
"""What a learner's code may raise; KeyboardInterrupt, which is the user's, is left out."""


def explain_error(
    error: BaseException, files: set[str], where: str, context: tuple[str, ...]
) -> CheckResult:
    """Turn what the learner's code raised into a finding."""
    if is_unsolved(error, files):
        name = traceback.extract_tb(error.__traceback__)[-1].name
        return CheckResult(NOT_SOLVED, f"{name}() is still to be written")
    line = find_line(error, files)
    details = (f"in your line: {line}",) if line else ()
    return CheckResult(
        NOT_RIGHT, f"{where}: {say_error(error)}", (*details, *_find_place(error, files), *context)
    )


def say_error(error: BaseException) -> str:
    """Return an error in a few words."""
    if isinstance(error, EndlessLoopError):
        return "an endless loop"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_unsolved(error: BaseException, files: set[str]) -> bool:
    """Tell the NotImplementedError of a skeleton from one that something else raised."""
    if not isinstance(error, NotImplementedError):
        return False
    return traceback.extract_tb(error.__traceback__)[-1].filename in files


def _find_place(error: BaseException, files: set[str]) -> tuple[str, ...]:
    """Say where the error was raised, unless that is the learner's own code."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(innermost.filename)
    is_told = innermost.filename in files or path.parent == Path(__file__).parent
    if is_told or isinstance(error, EndlessLoopError):
        return ()
    return (f"raised in {path.name}, {innermost.name}(): {innermost.line}",)


def find_line(error: BaseException, files: set[str]) -> str:
    """Return the last line of the learner's own code that led to the error."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files and frame.lineno:
            return linecache.getline(frame.filename, frame.lineno).strip()
    return ""


def code_files(yours: Any) -> set[str]:
    """Return the files, or notebook cells, in which a function or a class was written.

    Bases from the same module count: a learner's class may extend another one of theirs.
    """
    members = [yours]
    if isinstance(yours, type):
        own = [cls for cls in yours.__mro__ if cls.__module__ == yours.__module__]
        members = [member for cls in own for member in vars(cls).values()]
    functions = [getattr(m, "fget", None) or getattr(m, "__func__", m) for m in members]
    return {
        inspect.unwrap(function).__code__.co_filename
        for function in functions
        if hasattr(function, "__code__")
    }


@contextmanager
def cpu_limit(seconds: float | None = None) -> Iterator[None]:
    """Interrupt an endless loop after `seconds` of CPU time of this process (MAX_CPU_SECONDS).

    CPU time, so that a busy machine or a debugger's breakpoint is no endless loop. Signals reach
    the main thread only, in which a notebook's cells run; elsewhere there is no limit.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "SIGVTALRM"):
        yield
        return

    def interrupt(*_: object) -> None:
        raise EndlessLoopError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds or MAX_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
