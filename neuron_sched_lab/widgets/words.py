"""Text on the screen: what users named is shown as it is, on one line, never as markup."""

from __future__ import annotations

from collections.abc import Sequence

MAX_LABEL = 32
_TAIL = 10
_TWO_DIGITS = 0x100


def label(text: str, max_length: int = MAX_LABEL) -> str:
    """Return `text` for a label: visible characters only, the middle left out where it is long.

    Control characters and marks that change the direction of writing are spelled out.
    """
    long = len(text) > max_length
    # A user's name may be megabytes; only its ends are looked at.
    head, tail = (text[: max_length - _TAIL - 1], text[-_TAIL:]) if long else (text, "")
    shown = visible(head) + ("…" if long else "") + visible(tail)
    # Spelled out, it may have become too long again.
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def visible(text: str) -> str:
    """Return `text` with everything that cannot be seen spelled out, and a sign for a new line."""
    return "".join(_visible(c) for c in text)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    if char == "\n":
        return "⏎"
    return f"\\x{ord(char):02x}" if ord(char) < _TWO_DIGITS else f"\\u{ord(char):04x}"


def count(number: int, noun: str) -> str:
    """Return `1 token`, `2 tokens`, `1,000 tokens`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(labels: Sequence[str], total: int | None = None, limit: int = 4) -> str:
    """Return the first few labels and how many more there are."""
    shown = ", ".join(labels[:limit])
    more = (len(labels) if total is None else total) - min(len(labels), limit)
    return f"{shown} and {more} more" if more else shown or "none"


def percent(part: float, whole: float) -> str:
    """Return `part` of `whole` as `12.5 %`, or a dash if there is nothing to divide by."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
