"""Controls: the buttons of a Player."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from .player import Player
from .views.queue_board import group_requests
from .views.view import read_static

MAX_ABORTABLE = 100
"""Requests that the list of those to abort offers."""
MAX_PROMPT = 100_000
"""Characters of a prompt that is taken from the page."""


class Controls(anywidget.AnyWidget):
    """Step, play, pause, speed, run to the next change of state, scrub, add, abort, reset.

    Args:
        source: a Lab, a Trace, or the Player of either.

    Attributes:
        player: what the buttons move.
        frame: what the browser shows; all text in it is plain text.
    """

    frame = traitlets.Dict().tag(sync=True)

    _esm = traitlets.Unicode(read_static("common.js", "controls.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "controls.css")).tag(sync=True)

    def __init__(self, source: Any) -> None:
        self.player = Player.of(source)
        super().__init__()
        self.draw()
        self.player.observers.append(self.draw)
        self.on_msg(self._receive)

    def close(self) -> None:
        """Stop following the player, and remove the widget from the page."""
        player = getattr(self, "player", None)  # none if the source was refused
        if player is not None and self.draw in player.observers:
            player.observers.remove(self.draw)
        super().close()

    def draw(self) -> None:
        """Send the player's state to the browser."""
        player = self.player
        kind, text = player.message
        self.frame = {
            "scheduler": player.history.config.scheduler,
            "live": player.is_live,
            "playing": player.is_playing,
            "position": player.position,
            "total": len(player.history),
            "step": player.moment().step,
            "speed": player.speed,
            "can_reset": player.can_reset,
            "message": text,
            "is_error": kind == "alert",
            "abortable": self._get_abortable() if player.is_live else [],
        }

    def _get_abortable(self) -> list[list[Any]]:
        """Return [key, label] of those that can be aborted, whatever moment is shown."""
        player = self.player
        groups = group_requests(player.moment_at_end())
        keys = [
            key
            for name, group in groups.items()
            if name not in {"finished", "aborted"}
            for key in group.keys
        ]
        return [[key, player.history.label(key)] for key in sorted(keys)[:MAX_ABORTABLE]]

    def _receive(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        action = self._get_action(content)
        if action is not None:
            self.player.post(action)

    def _get_action(self, content: dict[str, Any]) -> Callable[[], Any] | None:
        """Return what a message of the page asks for, or None if it is not known."""
        player, value = self.player, content.get("value")
        actions: dict[str, Callable[[], Any]] = {
            "step": player.step,
            "back": player.back,
            "play": player.play,
            "pause": player.pause,
            "change": player.run_to_change,
            "reset": player.reset,
            "seek": lambda: player.seek(_as_int(value, "position")),
            "end": lambda: player.seek(len(player.trace)),
            "speed": lambda: self._set_speed(value),
            "add": lambda: self._add(content),
            "abort": lambda: player.abort(self._get_id(value)),
        }
        return actions.get(str(content.get("type")))

    def _set_speed(self, value: Any) -> None:
        self.player.speed = max(0, _as_int(value, "speed"))
        self.player.changed()

    def _add(self, content: dict[str, Any]) -> None:
        max_tokens = _as_int(content.get("max_tokens"), "max_tokens")
        prompt = content.get("prompt")
        if isinstance(prompt, str):
            if len(prompt) > MAX_PROMPT:
                raise ValueError(f"prompt: {len(prompt)} characters; at most {MAX_PROMPT}")
            self.player.add(prompt, max_tokens=max_tokens)
        else:
            num_tokens = _as_int(content.get("num_tokens"), "num_tokens")
            self.player.add(num_tokens=num_tokens, max_tokens=max_tokens)

    def _get_id(self, key: Any) -> str:
        key = _as_int(key, "request")
        if not 0 <= key < self.player.history.num_requests:
            raise ValueError(f"request: no request with key {key}")
        return self.player.history.request_id(key)

    def __repr__(self) -> str:
        """Return where the playhead stands; the same in every run."""
        player = self.player
        return f"Controls: step {player.position} of {len(player.trace)}"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        return {**data, "text/plain": repr(self)}, metadata


def _as_int(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise ValueError(f"{name}: {value!r} must be a whole number")
    return int(value)
