"""Player: the playhead that all views of one Lab or Trace share, and the hand that moves it.

At the end of the trace of a live Lab the playhead makes new steps; before it, it replays
recorded ones. So one may scrub back while the engine is live, and play on from there.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ..trace.trace import Trace
from .history import History, Moment, state_of
from .throttle import Throttle
from .words import count, label

MAX_STEPS_TO_CHANGE = 1000
"""`run_to_change()` gives up after so many: a stalled scheduler never changes its state."""

MAX_STEPS = 100_000
"""Without an event loop nobody could press Pause; `play()` then gives up after so many."""

MAX_ADDED_AT_ONCE = 1000
MAX_SPEED = 0
"""The speed that means: as fast as the engine goes."""

TOKENS_OF_LENGTH = range(5, 15)
"""Token ids of a prompt that was asked for by its length alone."""


class Player:
    """Moves a playhead through a trace, live or recorded.

    Every method may be called from a cell. What a button calls goes through `post`, because
    JupyterLab may deliver it on another thread, beside a running cell.

    Args:
        source: a Lab, a Trace, or a function that makes a Lab (and adds its first requests).

    Attributes:
        lab: the live Lab, or None for a recorded trace.
        position: steps shown; `len(trace)` is the end.
        speed: steps a second, or MAX_SPEED.
        refill: called with the Lab after `reset()`, to add requests again.
        message: (`status` or `alert`, text): what happened last, for people.
        observers: called whenever something to be seen has changed, at most 30 times a second.
    """

    _players: ClassVar[WeakValueDictionary[int, Player]] = WeakValueDictionary()

    def __init__(self, source: Any) -> None:
        self._factory: Callable[[], Any] | None = None
        self.refill: Callable[[Any], None] | None = None
        self.lab: Any = None
        self._recorded: Trace | None = None
        if isinstance(source, Trace):
            self._recorded = source
        elif hasattr(source, "trace"):
            self.lab = source
        elif callable(source):
            self._factory, self.lab = source, source()
        else:
            raise ValueError(
                f"source: {source!r} is neither a Lab nor a Trace; give one of them, or a "
                f"function that makes a Lab"
            )
        self._watch_lab()
        self._began_empty = not self.trace.requests
        self.history = History(self.trace)
        self.position = len(self.trace) if self.is_live else 0
        self.speed: float = 5
        self.message = ("status", "")
        self.observers: list[Callable[[], None]] = []
        self._pending_aborts: list[str] = []
        self._advancing = False
        self._task: asyncio.Task[None] | None = None
        self._home = threading.get_ident()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None  # no kernel: everything runs at once
        self._throttle = Throttle(self._draw, self._loop)

    @classmethod
    def of(cls, source: Any) -> Player:
        """Return the player of `source`, the same one for all views of the same object."""
        if isinstance(source, Player):
            return source
        player = cls._players.get(id(source))
        if player is None or not player._plays(source):
            player = cls._players[id(source)] = cls(source)
        return player

    def _plays(self, source: Any) -> bool:
        # An id may be taken again by another object, once the first is gone.
        return source is self.lab or source is self._recorded

    # What is shown

    @property
    def is_live(self) -> bool:
        """True if there is an engine that can make new steps."""
        return self.lab is not None

    @property
    def trace(self) -> Trace:
        """The trace that is shown."""
        return self.lab.trace if self._recorded is None else self._recorded

    @property
    def is_playing(self) -> bool:
        """True from `play()` or `run_to_change()` to their end or `pause()`."""
        return self._task is not None and not self._task.done()

    @property
    def is_at_end(self) -> bool:
        """True if the playhead stands after the last step."""
        return self.position >= len(self.trace)

    @property
    def can_reset(self) -> bool:
        """True if `reset()` can go back to the start, the requests of the start included."""
        if not self.is_live or self._factory is not None:
            return True
        return hasattr(self.lab, "reset") and (self.refill is not None or self._began_empty)

    def moment(self) -> Moment:
        """Return what is to be shown now."""
        return Moment.of(self.history, self.position, self._unrecorded_aborts())

    def moment_at_end(self) -> Moment:
        """Return what there is now, whatever moment is shown."""
        return Moment.of(self.history, len(self.history), self._unrecorded_aborts())

    def _unrecorded_aborts(self) -> tuple[str, ...]:
        """Return who was aborted since the last step; a trace learns of it in the next."""
        known = tuple(getattr(self.lab, "pending_aborts", ()))
        return known + tuple(i for i in self._pending_aborts if i not in known)

    # Moving

    def step(self) -> None:
        """Move on by one step, a recorded one or a new one."""
        self._stop_task()
        if self._advance():
            self.message = ("status", "")
        self.changed()

    def back(self) -> None:
        """Move back by one step."""
        self.seek(self.position - 1)

    def seek(self, position: int) -> None:
        """Move to after `position` steps; while playing, it plays on from there."""
        self.history.extend()
        self.position = min(max(position, 0), len(self.history))
        self.changed()

    def play(self) -> asyncio.Task[None] | None:
        """Go on until everything has ended, or `pause()`.

        Returns:
            In a notebook, what a cell may await; otherwise None, when all is done.
        """
        return self._start(None)

    def run_to_change(self) -> asyncio.Task[None] | None:
        """Go on at full speed until the scheduler's state changes; returns as `play()` does."""
        return self._start(self._state())

    def pause(self) -> None:
        """Stop playing, at once."""
        self._stop_task()
        self.changed()

    def _start(self, state: str | None) -> asyncio.Task[None] | None:
        self._stop_task()
        self.message = ("status", "")
        if self._loop is None:
            steps = 0
            while steps < MAX_STEPS and not self._is_over(state, steps) and self._advance():
                steps += 1
            self.changed()
            return None
        self._task = self._loop.create_task(self._run(state))
        self.changed()
        return self._task

    async def _run(self, state: str | None) -> None:
        """Advance until told to stop; with a `state`, until it is another one, at full speed."""
        steps = 0
        due = monotonic()
        try:
            while not self._is_over(state, steps) and self._advance():
                steps += 1
                self._throttle.request()
                speed = MAX_SPEED if state is not None else self.speed
                due = max(due + (1 / speed if speed else 0), monotonic() - 1)
                await asyncio.sleep(max(due - monotonic(), 0))
        except Exception as error:  # noqa: BLE001  (the error of a callback is seen nowhere else)
            self.fail(error)
        finally:
            if self._task is asyncio.current_task():
                self._task = None
            self.changed()

    def _is_over(self, state: str | None, steps: int) -> bool:
        if state is None:
            return False
        if steps >= MAX_STEPS_TO_CHANGE:
            self.message = ("status", f"no change of state in {count(steps, 'step')}")
            return True
        return self._state() != state

    def _state(self) -> str:
        record = self.moment().record
        return state_of(record) if record else ""

    def _advance(self) -> bool:
        """Move the playhead by one step; return False if there is nothing left to do."""
        self.history.extend()
        if self.position < len(self.history):
            self.position += 1
            return True
        if not self.is_live:
            self.message = ("status", "end of the recorded trace")
            return False
        self._advancing = True
        try:
            record = self.lab.step()
        finally:
            self._advancing = False
        if record is None:
            self.message = ("status", "nothing left to do; add a request")
            return False
        self._pending_aborts.clear()
        self.history.extend()
        self.position = len(self.history)
        return True

    def _stop_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    # Feeding a live Lab

    def add(
        self, prompt: str | None = None, *, num_tokens: int = 16, max_tokens: int = 16, n: int = 1
    ) -> list[str]:
        """Add requests to the live Lab.

        Args:
            prompt: its text; None for a prompt of `num_tokens` tokens without meaning.
            num_tokens: length of such a prompt.
            max_tokens: most tokens to generate.
            n: how many such requests.

        Raises:
            RuntimeError: the trace is a recorded one.
            ValueError: as `Lab.add`.
        """
        lab = self._need_lab()
        if not 1 <= n <= MAX_ADDED_AT_ONCE:
            raise ValueError(f"n: {n} must be between 1 and {MAX_ADDED_AT_ONCE}")
        if prompt is None and num_tokens < 1:
            raise ValueError(f"num_tokens: {num_tokens} must be at least 1")
        ids = []
        for _ in range(n):
            if prompt is not None:
                ids.append(lab.add(prompt, max_tokens=max_tokens))
                continue
            # Different ones each time, or the prefix cache would know them; the same in each run.
            choose = random.Random(len(self.trace.requests))
            tokens = choose.choices(TOKENS_OF_LENGTH, k=num_tokens)
            ids.append(lab.add(tokens, max_tokens=max_tokens, ignore_eos=True))
        what = label(ids[0]) if n == 1 else count(n, "request")
        self._say(f"added {what}")
        return ids

    def abort(self, request_id: str) -> None:
        """Abort a request of the live Lab.

        Raises:
            RuntimeError: the trace is a recorded one.
            KeyError: no such request.
        """
        self._need_lab().abort(request_id)
        self._pending_aborts.append(request_id)
        self._say(f"aborted {label(request_id)}")

    def reset(self) -> None:
        """Go back to the start: of a recorded trace, or of a live Lab with its first requests.

        A Lab that was given with requests in it cannot go back by itself: they would be lost.

        Raises:
            RuntimeError: it cannot, see `can_reset`.
        """
        if not self.can_reset:
            raise RuntimeError(
                "reset: this Lab's first requests would be lost; give a function that makes a Lab, "
                "or `refill`"
            )
        self._stop_task()
        self._pending_aborts.clear()
        if self._recorded is not None:
            self.seek(0)
            return
        if self._factory is not None:
            self.lab.close()
            self.lab = self._factory()
            self._watch_lab()
        else:
            self.lab.reset()
        if self.refill is not None:
            self.refill(self.lab)
        self.history = History(self.trace)
        self.position = len(self.history)
        self._say("reset")

    def _need_lab(self) -> Any:
        if self.lab is None:
            raise RuntimeError("this is a recorded trace; only a live Lab takes requests")
        return self.lab

    def _say(self, text: str) -> None:
        self.message = ("status", text)
        self.changed()

    # Being seen

    def _watch_lab(self) -> None:
        """Follow what cells do with the Lab, where it says so."""
        hooks = getattr(self.lab, "on_change", None)
        if hooks is not None:
            hooks.append(self._lab_changed)

    def _lab_changed(self) -> None:
        if not self._advancing:
            self.changed()

    def changed(self) -> None:
        """Take in what the trace has gained, and have everything drawn soon."""
        if self.history.trace is not self.trace:  # a cell has reset the Lab
            self.history, self.position = History(self.trace), 0
        was_at_end = self.position >= len(self.history)
        self.history.extend()
        if was_at_end and self.is_live:
            self.position = len(self.history)
        self._throttle.request()

    def _draw(self) -> None:
        for observer in tuple(self.observers):
            observer()

    def post(self, action: Callable[[], Any]) -> None:
        """Run `action` on the thread of the kernel's event loop; its errors become the message."""
        if self._loop is None or threading.get_ident() == self._home:
            self._guard(action)
        else:
            self._loop.call_soon_threadsafe(self._guard, action)

    def _guard(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (the error of a callback is seen nowhere else)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Show an error to the user."""
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        self.message = ("alert", f"{type(error).__name__}: {text}"[:500])
        self._throttle.request()
