"""Tables of results as text and as HTML; what users named is shown as it is, never as markup."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import isnan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from ..trace.board import printable

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_CELL = 60


def table_to_text(table: DataFrame) -> str:
    """Return the table as lines of a terminal: names to the left, numbers to the right."""
    rows = list(_rows(table))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [all(map(_is_number, table[name])) for name in table.columns]
    lines = []
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        lines.append("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in cells).rstrip())
    return "\n".join(lines)


def table_to_html(table: DataFrame) -> str:
    """Return the table as a bare HTML table."""
    head, *body = _rows(table)
    lines = ["<tr>" + "".join(f'<th scope="col">{escape(c)}</th>' for c in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in body]
    return f"<table>{''.join(lines)}</table>"


def _rows(table: DataFrame) -> Iterator[list[str]]:
    yield [printable(str(name), MAX_CELL) for name in table.columns]
    for row in table.itertuples(index=False, name=None):
        yield [format_cell(value) for value in row]


def format_cell(value: Any) -> str:
    """Return a value for a cell: numbers with four digits, nothing as a dash."""
    if value is None or (isinstance(value, Real) and isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    if isinstance(value, Real):
        return f"{value:,.0f}" if abs(float(value)) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 (digits)
    return printable(str(value), MAX_CELL)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, Real)
