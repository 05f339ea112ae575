"""Purity: does a scheduler refuse a batch that is not pure, and does it do so in time?

A right scheduler never shows vLLM such a batch, so the check that guards it has to be tried with
mistakes made on purpose: a subclass that hides nobody and lets everybody in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...simulation.bare_scheduler import make_request, make_scheduler

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from ...scheduler import SeparatedScheduler

REFUSED, TOO_LATE, ACCEPTED = "refused in time", "refused too late", "accepted"


def try_mixed_batch(cls: type[SeparatedScheduler]) -> str:
    """Return what `cls` does when a prefill would share the step with a decode.

    Returns:
        `refused in time` (before vLLM committed anything), `refused too late`, or `accepted`.
    """
    scheduler = _make(cls)
    scheduler.add_request(make_request("r0", range(20), max_tokens=4))
    scheduler.schedule(False)
    return _try_step(scheduler, "r1")


def try_two_prefills(cls: type[SeparatedScheduler]) -> str:
    """Return what `cls` does when two prompts would share a step; see `try_mixed_batch`."""
    scheduler = _make(cls)
    scheduler.add_request(make_request("r0", range(20), max_tokens=4))
    return _try_step(scheduler, "r1")


def _make(cls: type[SeparatedScheduler]) -> Any:
    class Mistaken(cls):  # type: ignore[valid-type, misc]
        def _hide_other_phase(self) -> None:
            """Hide nobody."""

        def can_schedule(self, request: Request) -> bool:
            return True

    return make_scheduler(
        Mistaken,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_blocks=65,
        block_size=16,
    )


def _try_step(scheduler: Any, request_id: str) -> str:
    request = make_request(request_id, range(20), max_tokens=4)
    scheduler.add_request(request)
    try:
        scheduler.schedule(False)
    except NotImplementedError:  # a skeleton; it is a RuntimeError too
        raise
    except RuntimeError:
        return TOO_LATE if request.num_computed_tokens else REFUSED
    return ACCEPTED
