"""Checks of functions, of values and of predictions."""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from . import guard
from .guard import (
    FINDINGS,
    EndlessLoopError,
    code_files,
    cpu_limit,
    explain_error,
    find_line,
    is_unsolved,
    say_error,
)
from .result import NOT_RIGHT, NOT_SOLVED, SOLVED, CheckResult, require

if TYPE_CHECKING:
    from ...trace.trace import Trace

Case: TypeAlias = tuple[Any, ...] | Mapping[str, Any]

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxdict = 12
_short.maxstring = _short.maxother = 80
SMALL = 8
"""Most numbers in a result that is shown whole."""

NOTHING_TO_CHECK = "nothing was checked: {}; run the notebook's cells again, from the top"

LETTERS = {"P": "ACTIVE_PREFILL", "D": "ACTIVE_DECODE"}
"""What a prediction may write for a state, as in "PPD"."""


class ValueRule(NamedTuple):
    """A rule for the result of a function, or for a value.

    Attributes:
        name: what messages call it.
        text: the rule in one sentence.
        holds: called with the value, for a function with its arguments first; True if kept.
    """

    name: str
    text: str
    holds: Callable[..., bool]


def check_function(
    yours: Callable[..., Any],
    packaged: Callable[..., Any],
    cases: Iterable[Case],
    rules: Sequence[ValueRule] = (),
) -> CheckResult:
    """Call two functions with the same arguments and compare what they return or raise.

    Args:
        yours: the function that the learner wrote.
        packaged: the function that it should behave like.
        cases: the arguments of each call, a tuple or a dict by name. Simple ones first: the first
            difference is shown.
        rules: to name what a wrong result breaks; called with the arguments and the result.

    Raises:
        NotSolvedError: it is not solved, and NSL_REQUIRE_SOLVED is 1.
    """
    return require(compare_functions(yours, packaged, cases, rules))


def compare_functions(
    yours: Callable[..., Any],
    packaged: Callable[..., Any],
    cases: Iterable[Case],
    rules: Sequence[ValueRule] = (),
) -> CheckResult:
    """Do what `check_function` does, and never raise."""
    number = 0
    for number, case in enumerate(cases, start=1):
        call = f"{yours.__name__}({_describe_arguments(case)})"
        expected, expected_error = _call(packaged, case)
        found, error = _call(yours, case)
        if error is not None and is_unsolved(error, code_files(yours)):
            return explain_error(error, code_files(yours), "", ())
        says = _Says(packaged)
        difference = _find_outcome_difference(found, error, expected, expected_error, says)
        if difference is None:
            continue
        details: tuple[str, ...] = ()
        if error is None and found is not None:  # no rule can judge a forgotten `return`
            arguments = case.values() if isinstance(case, Mapping) else case
            details = _broken_value_rules(rules, *arguments, found)
        elif error is not None and (line := find_line(error, code_files(yours))):
            details = (f"in your line: {line}",)
        return CheckResult(NOT_RIGHT, f"case {number}: {call}: {difference}", details)
    if not number:
        return CheckResult(NOT_SOLVED, NOTHING_TO_CHECK.format("there is no case"))
    name = getattr(packaged, "__name__", "the packaged function")
    return CheckResult(SOLVED, f"{yours.__name__} does what {name} does, in {number} cases")


def _describe_arguments(case: Case) -> str:
    if isinstance(case, Mapping):
        return ", ".join(f"{name}={_short.repr(_as_plain(item))}" for name, item in case.items())
    return ", ".join(_short.repr(_as_plain(item)) for item in case)


class _Says:
    """How messages speak of the function that yours is compared with.

    Attributes:
        returns, raises: the beginning of a sentence about it.
        result: what stands at a place of its result.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        module = getattr(function, "__module__", None) or ""
        if module.startswith(__name__.partition(".")[0]):
            self.returns = "the packaged function returns"
            self.raises = "the packaged function raises"
            self.result = "in the packaged function's"
        else:  # the check's own, which the learner cannot look up
            self.returns, self.raises = "it must return", "it must raise"
            self.result = "in the right one"


def _call(
    function: Callable[..., Any], case: Case, seconds: float | None = None
) -> tuple[Any, BaseException | None]:
    """Return the result and the error; one of them is None."""
    case = copy.deepcopy(case)
    try:
        with cpu_limit(seconds):
            if isinstance(case, Mapping):
                return function(**case), None
            return function(*case), None
    except FINDINGS as error:  # whatever a learner's code may raise
        return None, error


def _find_outcome_difference(
    found: Any,
    error: BaseException | None,
    expected: Any,
    expected_error: BaseException | None,
    says: _Says,
) -> str | None:
    if error is None and expected_error is None:
        return _find_value_difference(found, expected, says)
    if error is None:
        you = f"you returned {_short.repr(found)}"
    elif expected_error is not None and isinstance(error, type(expected_error)):
        return None
    elif isinstance(error, EndlessLoopError):
        you = _say_endless("your function", guard.MAX_CPU_SECONDS)
    else:
        you = f"you raised {say_error(error)}"
    if expected_error is None:
        return f"{you}, {says.returns} {_short.repr(expected)}"
    return f"{you}, {says.raises} {say_error(expected_error)}"


def _say_endless(who: str, seconds: float) -> str:
    return f"{who} did not return within {seconds:g} s of computing (an endless loop?)"


def _find_value_difference(found: Any, expected: Any, says: _Says) -> str | None:
    """Say where two results differ; a list equals a tuple, and True is not 1."""
    if found is None and expected is not None:
        what = _short.repr(_as_plain(expected))
        if hasattr(expected, "_asdict"):
            what = f"a {type(expected).__name__}"
        return f"you returned None, {says.returns} {what}"
    mine, theirs = dict(_leaves("", found)), dict(_leaves("", expected))
    for path in [*theirs, *(path for path in mine if path not in theirs)]:
        if path in mine and path in theirs and _same(mine[path], theirs[path]):
            continue
        if path in {"", "len()"} or len(theirs) <= SMALL:
            return (
                f"you returned {_short.repr(_as_plain(found))}, "
                f"{says.returns} {_short.repr(_as_plain(expected))}"
            )
        left = _short.repr(mine[path]) if path in mine else "missing"
        right = _short.repr(theirs[path]) if path in theirs else "missing"
        return f"{path} is {left} in your result, {right} {says.result}"
    return None


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each number or text in a result with its path, such as `slot_mapping[5]`."""
    value = _as_plain(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, (list, tuple)):
        yield f"len({path})", len(value)
        for i, item in enumerate(value):
            yield from _leaves(f"{path}[{i}]", item)
    else:
        yield path, value


def _same(found: Any, expected: Any) -> bool:
    alike = type(found) is type(expected) or {type(found), type(expected)} == {int, float}
    return alike and found == expected


def _as_plain(value: Any) -> Any:
    """Return arrays and tensors as lists, and what has named fields as a dict."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "_asdict"):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return value


def _broken_value_rules(rules: Sequence[ValueRule], *args: Any) -> tuple[str, ...]:
    broken = []
    for rule in rules:
        try:
            holds = rule.holds(*args)
        except Exception:  # noqa: BLE001  (the caller has it)
            holds = False
        if not holds:
            broken.append(f"rule broken: {rule.name} ({rule.text})")
    return tuple(broken)


def check_value(value: Any, rules: Sequence[ValueRule]) -> CheckResult:
    """Check a value that the learner filled in; None means that they have not yet.

    Args:
        value: the value, or a function without arguments that returns it: then an error in the
            learner's code is a finding as well.
        rules: what it must keep to; called with the value.

    Raises:
        NotSolvedError: it is not solved, and NSL_REQUIRE_SOLVED is 1.
    """
    return require(_compare_value(value, rules))


def _compare_value(value: Any, rules: Sequence[ValueRule]) -> CheckResult:
    if callable(value):
        value, error = _call(value, (), guard.MAX_CPU_SECONDS_OF_A_RUN)
        if error is not None:
            return _explain_no_value(error)
    if value is None:
        return CheckResult(NOT_SOLVED, "the value is still None")
    if not rules:
        return CheckResult(NOT_SOLVED, NOTHING_TO_CHECK.format("there is no rule for it to keep"))
    if broken := _broken_value_rules(rules, value):
        return CheckResult(NOT_RIGHT, f"you gave {_short.repr(value)}", broken)
    kept = ", ".join(rule.name for rule in rules)
    return CheckResult(SOLVED, f"{_short.repr(value)} keeps every rule ({kept})")


def _explain_no_value(error: BaseException) -> CheckResult:
    if isinstance(error, NotImplementedError):
        return CheckResult(NOT_SOLVED, "it is still to be written")
    if isinstance(error, EndlessLoopError):
        return CheckResult(NOT_RIGHT, _say_endless("your code", guard.MAX_CPU_SECONDS_OF_A_RUN))
    return CheckResult(NOT_RIGHT, f"your code raised {say_error(error)}")


def check_prediction(prediction: Sequence[str], trace: Trace) -> CheckResult:
    """Compare predicted states, one for each step, with those of a trace.

    Args:
        prediction: states, or their first letters as in "PPD".
        trace: what the engine did.

    Raises:
        NotSolvedError: it is not solved, and NSL_REQUIRE_SOLVED is 1.
    """
    if not trace:
        message = NOTHING_TO_CHECK.format("the engine has not run a step")
        return require(CheckResult(NOT_SOLVED, message))
    for predicted, record in zip(prediction, trace, strict=False):
        if record.state not in (predicted, LETTERS.get(predicted)):
            why = record.cause or "no reason recorded"
            if record.held_head and record.state != LETTERS["P"]:
                why += f"; {record.held_head} held back: {record.hold_reason}"
            difference = f"you predicted {predicted}, it was {record.state} ({why})"
            return require(CheckResult(NOT_RIGHT, f"step {record.step}: {difference}"))
    if len(prediction) > len(trace):
        message = f"you predicted {len(prediction)} steps, all is done after {len(trace)}"
        return require(CheckResult(NOT_RIGHT, message))
    if len(prediction) < len(trace):
        message = f"{len(prediction)} of {len(trace)} steps predicted, right so far"
        return require(CheckResult(NOT_SOLVED, message))
    return require(CheckResult(SOLVED, f"all {len(trace)} states are right"))
