"""Reads differs.txt, the list of vLLM's tests that differ by design."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

SECTION = re.compile(r"\[(?P<category>[^]]+)\] (?P<owner>\w+)(?: - (?P<until>\w+))?")
LINE = re.compile(r"(?:(?P<version>\d+\.\d+) )?(?P<test>\S+\.py::\S.*?) \| (?P<reason>\S.*)")
ANY_PARAMETERS = "[*]"


@dataclass(frozen=True)
class Difference:
    """One line: a test, or all parameters of one, with the reason."""

    test: str
    category: str
    reason: str
    owner: str
    """The class that brings the difference in; its subclasses have it too."""
    until: str | None
    """The subclass that takes it away again."""
    version: str | None
    """Major and minor version of vLLM, or None for every one."""

    def matches(self, test_id: str) -> bool:
        """Whether this line speaks of `test_id`."""
        if self.test.endswith(ANY_PARAMETERS):
            return test_id.startswith(self.test.removesuffix(ANY_PARAMETERS) + "[")
        return test_id == self.test


def parse(text: str) -> list[Difference]:
    """Parse the file.

    Raises:
        ValueError: a line is none of a comment, a section and a test; it is quoted.
    """
    differences, section = [], None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if match := SECTION.fullmatch(line):
            section = match.groupdict()
        elif section and (match := LINE.fullmatch(line)):
            differences.append(Difference(**section, **match.groupdict()))
        else:
            raise ValueError(
                f"line {number}: {line!r} must be a comment, `[category] CLASS`, or under such a "
                f"section `TEST | reason`"
            )
    return differences


def read_differences(file: Path, version: str, scheduler: str) -> list[Difference]:
    """Return the lines that hold for this version of vLLM and this scheduler class.

    Args:
        file: the list.
        version: such as "0.29.0".
        scheduler: `module.Class`.
    """
    module, _, name = scheduler.rpartition(".")
    families = {cls.__name__ for cls in getattr(import_module(module), name).__mro__}
    return [
        line
        for line in parse(file.read_text(encoding="utf-8"))
        if line.version in {None, version.rpartition(".")[0]}
        and line.owner in families
        and line.until not in families
    ]


def expected_differences(
    listed: list[Difference], test_ids: Iterable[str]
) -> tuple[dict[str, Difference], list[Difference]]:
    """Return {test id: its line}, and the lines that speak of no test."""
    expected = {test_id: line for test_id in test_ids for line in listed if line.matches(test_id)}
    return expected, [line for line in listed if line not in expected.values()]
