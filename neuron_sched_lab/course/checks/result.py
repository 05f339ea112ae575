"""CheckResult: what a self-check says, as text and as HTML, the same in every run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape

REQUIRE_SOLVED = "NSL_REQUIRE_SOLVED"
"""Environment variable: set to 1, a check that is not solved raises. CI runs solutions that way."""

SOLVED, NOT_RIGHT, NOT_SOLVED = "solved", "not right yet", "not solved yet"


class NotSolvedError(AssertionError):
    """A check was not solved where NSL_REQUIRE_SOLVED asks for it."""


@dataclass(frozen=True)
class CheckResult:
    """The verdict of a check; a notebook shows it as the last expression of a cell.

    Attributes:
        status: `solved`, `not right yet` or `not solved yet`.
        message: one sentence: what was compared, or where the first difference is.
        details: more lines, such as the rule broken and the queues before the step.
    """

    status: str
    message: str
    details: tuple[str, ...] = ()

    @property
    def solved(self) -> bool:
        """True if nothing is left to do."""
        return self.status == SOLVED

    def __str__(self) -> str:
        return "\n".join([f"{self.status}: {self.message}", *(f"  {d}" for d in self.details)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the verdict as HTML; the learner's own text in it is escaped."""
        details = f"<pre>{escape(chr(10).join(self.details))}</pre>" if self.details else ""
        return f"<p><strong>{self.status}</strong>: {escape(self.message)}</p>{details}"


def require(result: CheckResult) -> CheckResult:
    """Return `result`; raise NotSolvedError if it is not solved and NSL_REQUIRE_SOLVED is 1."""
    if os.environ.get(REQUIRE_SOLVED) == "1" and not result.solved:
        raise NotSolvedError(str(result))
    return result
