"""Picture: a small SVG for where no JavaScript runs, and the HTML around it.

It is shown as an image with a text alternative, so nothing in it can act, whatever it says.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from .palette import DIM, HATCH, INK, LINE, PAPER

FONT = "system-ui,-apple-system,Segoe UI,Roboto,sans-serif"


class Picture:
    """An SVG under construction; coordinates and sizes are pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, *, stroke: str = "", r: float = 0
    ) -> None:
        """Add a rectangle; `fill` may be `hatch`."""
        outline = f' stroke="{stroke}"' if stroke else ""
        corners = f' rx="{r:g}"' if r else ""
        paint = "url(#h)" if fill == "hatch" else fill
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{paint}"'
            f"{outline}{corners}/>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 12,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
        max_length: int = 60,
    ) -> None:
        """Add a line of text, its baseline at `y`."""
        if len(text) > max_length:
            text = text[: max_length - 1] + "…"
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def path(self, d: str, stroke: str, *, width: float = 1, dash: str = "") -> None:
        """Add a line along `d`."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path d="{d}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashed}/>'
        )

    def badge(self, x: float, y: float, letter: str, colour: str, size: float = 15) -> None:
        """Add a letter on a coloured square, its upper left corner at (x, y)."""
        self.rect(x, y, size, size, colour, r=3)
        self.text(
            x + size / 2, y + size * 0.76, letter, size=int(size * 0.72), fill="#000",
            anchor="middle", bold=True,
        )  # fmt: skip

    def svg(self) -> str:
        """Return the finished SVG, on its own paper."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="{FONT}">'
            f'<defs><pattern id="h" width="5" height="5" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{PAPER}"/>'
            f'<rect width="1.5" height="5" fill="{HATCH}"/></pattern></defs>'
            f'<rect width="100%" height="100%" rx="6" fill="{PAPER}" stroke="{LINE}"/>'
            f"{''.join(self._parts)}</svg>"
        )

    def img(self, alt: str) -> str:
        """Return the picture as an HTML image."""
        data = b64encode(self.svg().encode()).decode()
        return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">'


def title(picture: Picture, text: str, note: str = "") -> None:
    """Head a picture with its title and a note."""
    picture.text(12, 21, text, size=13, bold=True)
    if note:
        picture.text(picture.width - 12, 21, note, fill=DIM, anchor="end", max_length=80)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return `rows`, the first of which names the columns, as a bare table."""
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in body]
    return f"<table>{''.join(lines)}</table>"
