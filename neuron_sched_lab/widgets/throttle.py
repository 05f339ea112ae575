"""Throttle: limits how often something is drawn; the latest request is always drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

MAX_DRAWS_PER_SECOND = 30
"""Nobody sees more, and a browser that falls behind reacts late to Pause."""


class Throttle:
    """Calls `draw` when asked, but not before 1/30 s after the last time.

    Args:
        draw: what to call.
        loop: the kernel's event loop, which makes the last call when a pause follows; without
            one every request is answered at once.
    """

    def __init__(self, draw: Callable[[], None], loop: asyncio.AbstractEventLoop | None) -> None:
        self._draw = draw
        self._loop = loop
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        """Draw now, or soon if it was drawn a moment ago."""
        wait = self._last + 1 / MAX_DRAWS_PER_SECOND - monotonic()
        if self._loop is None or self._loop.is_closed() or wait <= 0:
            self.draw_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait, self.draw_now)

    def draw_now(self) -> None:
        """Draw whatever is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._draw()
        finally:
            self._last = monotonic()
