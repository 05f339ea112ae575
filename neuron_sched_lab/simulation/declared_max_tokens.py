"""Requests that declare more `max_tokens` than they generate, as users' requests do.

In a simulation a request ends after the tokens that its trace says, and by default its scheduler is
told that very number. The policies of `kv_admission` then know the future, which they do not in
production. Here each request claims KV blocks as if it had asked for more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..settings.environment import prepare_environment

prepare_environment()

from ..scheduler import NeuronScheduler  # noqa: E402
from ..scheduler.kv_claims import KVClaims  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.request import Request


def declaring(max_tokens: int) -> type[NeuronScheduler]:
    """Return a NeuronScheduler for which every request declares at least `max_tokens`.

    Raises:
        ValueError: `max_tokens` is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"declared_max_tokens: {max_tokens} must be at least 1, or None")
    name = f"NeuronSchedulerDeclaring{max_tokens}"
    body = {"declared_max_tokens": max_tokens, "__module__": __name__, "__qualname__": name}
    return type(name, (DeclaringScheduler,), body)


class DeclaringScheduler(NeuronScheduler):
    """NeuronScheduler whose requests claim KV blocks for `declared_max_tokens` at least."""

    declared_max_tokens = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._kv_claims is not None:
            self._kv_claims = DeclaredClaims(self, self.declared_max_tokens)


class DeclaredClaims(KVClaims):
    """KVClaims for at least the declared `max_tokens`."""

    def __init__(self, scheduler: NeuronScheduler, declared_max_tokens: int) -> None:
        super().__init__(scheduler)
        self._declared_max_tokens = declared_max_tokens

    def get_claim(self, request: Request) -> int:
        """Most blocks that the request will ever hold: never more than there are."""
        return min(super().get_claim(request), self.num_blocks)

    def _get_claimed_tokens(self, request: Request) -> int:
        declared = request.num_prompt_tokens + self._declared_max_tokens
        return max(super()._get_claimed_tokens(request), min(declared, self._max_model_len))
