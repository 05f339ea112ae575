"""Steadiness: will the scheduler decide the same in every step while requests only decode?

`FastForward` asks before it advances a run of decode steps. vLLM's Scheduler and ours are known;
a class of your own is judged by what it overrides. One that overrides `can_schedule` is steady
while nobody waits, since then it is not asked; one that overrides more is not. With

    steady_while_decoding = True

in its body a class promises that its decisions change only when somebody arrives or ends, and is
taken at its word.
"""

from __future__ import annotations

from ..settings.environment import prepare_environment

prepare_environment()

from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402

from ..scheduler import compat  # noqa: E402
from ..scheduler.holdback import HoldbackScheduler, HoldReason  # noqa: E402
from ..trace.records import DECODE  # noqa: E402

STEADY_REASONS = {HoldReason.AT_CAPACITY, HoldReason.KV_SATURATED}
"""Why a request may be held back in every step until a running one ends."""

PACKAGE = HoldbackScheduler.__module__.rpartition(".")[0]


def why_not(scheduler: Scheduler) -> str | None:
    """Return why decode steps of this scheduler cannot be advanced, or None if they can."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    obstacles = {
        "asynchronous scheduling": isinstance(scheduler, AsyncScheduler)
        or scheduler.scheduler_config.async_scheduling,
        "KV-cache groups other than one of full attention": len(groups) != 1
        or type(groups[0].kv_cache_spec) is not FullAttentionSpec,
        "speculative decoding": scheduler.vllm_config.speculative_config is not None,
        "a KV connector": bool(scheduler.connector or scheduler.ec_connector),
        "LoRA": scheduler.lora_config is not None,
        "log_stats": scheduler.log_stats,
    }
    overridden = get_overrides(type(scheduler)) - {"can_schedule"}
    if overridden and not _promises_steadiness(scheduler):
        obstacles[f"{type(scheduler).__name__} overrides {', '.join(sorted(overridden))}"] = True
    return next((obstacle for obstacle, there in obstacles.items() if there), None)


def get_overrides(cls: type[Scheduler]) -> set[str]:
    """Return the names that `cls` overrides in the packaged class that it extends."""
    packaged = next(base for base in cls.__mro__ if _is_packaged(base))
    mine = cls.__mro__[: cls.__mro__.index(packaged)]
    defined = {name for base in mine for name in vars(base)}
    # Every class has its own __doc__ and so on, and every abstract one an _abc_impl.
    return {n for n in defined if n in dir(packaged) and not n.startswith(("__", "_abc_"))}


def _is_packaged(cls: type) -> bool:
    return cls is Scheduler or cls.__module__.startswith(f"{PACKAGE}.")


def _promises_steadiness(scheduler: Scheduler) -> bool:
    return getattr(scheduler, "steady_while_decoding", False)


class Steadiness:
    """Watches a scheduler, to know whether its next decode steps will be alike.

    Attributes:
        why_not: why its decode steps cannot be advanced at all, or None.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.why_not = why_not(scheduler)
        self._scheduler = scheduler
        self._holds_back = isinstance(scheduler, HoldbackScheduler)
        has_own_can_schedule = "can_schedule" in get_overrides(type(scheduler))
        self._only_if_nobody_waits = has_own_can_schedule and not _promises_steadiness(scheduler)
        self._free_seats_admit = not (
            has_own_can_schedule or getattr(scheduler, "_kv_claims", None) is not None
        )
        self._caches_prefixes = scheduler.cache_config.enable_prefix_caching
        self._nobody_fits = False

    def note_step(self, phase: str) -> None:
        """Take note of a scheduled step: a decode step admits nobody, whoever waits."""
        self._nobody_fits = phase == DECODE

    def note_change(self) -> None:
        """Take note that somebody arrived or ended: who waits may fit now."""
        self._nobody_fits = False

    def may_admit(self, num_waiting: int) -> bool:
        """Return True if the next step might admit somebody, or decide anything else anew."""
        scheduler = self._scheduler
        if not num_waiting:
            return False
        if self._only_if_nobody_waits:
            return True
        if self._holds_back:
            return self._has_free_seat() or not self._is_head_held_back()
        seats = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        if seats >= compat.get_max_num_running(scheduler):
            return False
        # Free blocks only get fewer while requests decode; but more of a prompt may be cached.
        return not self._nobody_fits or self._caches_prefixes

    def _has_free_seat(self) -> bool:
        """Tell whether schedule() surely admits somebody, so that it need not be asked."""
        scheduler = self._scheduler
        seats = getattr(scheduler, "_max_kv_concurrent", scheduler.max_num_seqs)
        taken = scheduler.num_seats_taken
        return self._free_seats_admit and taken < min(seats, scheduler.max_num_seqs)

    def _is_head_held_back(self) -> bool:
        """Ask our scheduler, as its schedule() would, and tell whether the answer will last."""
        scheduler = self._scheduler
        scheduler.hold_reason = scheduler.held_back = None
        scheduler._set_aside_waiting()
        try:
            found = compat.next_candidate(
                scheduler, scheduler.holdback_queue, scheduler._side_holdback
            )
            if found is None or scheduler.can_schedule(found[0]):
                return False
            scheduler.held_back = found[0]
        finally:
            scheduler._restore_waiting()
        return scheduler.hold_reason in STEADY_REASONS
