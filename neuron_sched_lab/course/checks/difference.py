"""Differences: where two classes part in a step, and why the packaged one goes its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...scheduler import HoldReason
from ...scheduler.buckets import get_bucket_for_count
from .scheduler_rules import join_ids

if TYPE_CHECKING:
    from .scenario_run import Step


def find_difference(yours: Step, packaged: Step) -> str | None:
    """Say where two steps that began alike differ, or return None."""
    return (
        _different_start(yours, packaged)
        or _different_shown(yours, packaged)
        or _different_running(yours, packaged)
        or _different_counts(yours, packaged)
        or _different_padding(yours, packaged)
        or _different_queues(yours, packaged)
        or _different_extra(yours, packaged)
        or _different_returned(yours, packaged)
    )


def _different_start(yours: Step, packaged: Step) -> str | None:
    extra = [r for r in yours.started if r not in packaged.started]
    missing = [r for r in packaged.started if r not in yours.started]
    if extra:
        return f"you scheduled {extra[0]}, {_why_not_started(extra[0], yours, packaged)}"
    if missing:
        return f"you did not schedule {missing[0]}, the packaged class started it"
    return None


def _different_shown(yours: Step, packaged: Step) -> str | None:
    """Compare what vLLM's own schedule() found in its queues."""
    for request_id in yours.shown_waiting:
        if request_id not in packaged.shown_waiting:
            why = _why_not_started(request_id, yours, packaged)
            return f"you showed the waiting {request_id} to vLLM, {why}"
    for request_id in packaged.shown_waiting:
        if request_id not in yours.shown_waiting:
            return f"you held {request_id} back, the packaged class showed it to vLLM"
    for request_id in yours.shown_running:
        if request_id not in packaged.shown_running:
            why = _why_not_run(request_id, packaged)
            return f"you showed the running {request_id} to vLLM, {why}"
    for request_id in packaged.shown_running:
        if request_id not in yours.shown_running:
            what = "the prefill" if request_id in packaged.prefilling else "the decode"
            return f"you hid {what} of {request_id}, the packaged class showed it to vLLM"
    return None


def _why_not_started(request_id: str, yours: Step, packaged: Step) -> str:
    held_back = getattr(packaged.scheduler, "held_back", None)
    reason = getattr(packaged.scheduler, "hold_reason", None)
    first = packaged.started[0] if packaged.started else None
    if first and first not in yours.started:
        return f"the packaged class started {first}, which stood in front of it"
    words = "the packaged class held it back"
    if held_back is not None and held_back.request_id != request_id:
        words += f" behind {held_back.request_id}, which was held back"
    return f"{words} because {_in_words(reason, packaged)}"


def _in_words(reason: HoldReason | None, packaged: Step) -> str:
    scheduler = packaged.scheduler
    limit = scheduler.scheduler_config.max_num_seqs
    if reason is HoldReason.AT_CAPACITY:
        return f"the running queue was at capacity (max_num_seqs = {limit})"
    if reason is HoldReason.PREFILL_IN_PROGRESS:
        return f"{join_ids(sorted(packaged.prefilling))} was still reading its prompt"
    if reason is HoldReason.PREFILL_BATCH_FULL:
        return f"{join_ids(packaged.started)} already started in this step"
    if reason is HoldReason.KV_SATURATED:
        bound = scheduler._max_kv_concurrent
        return f"the KV cache was saturated: {bound} running requests may need all of it"
    if reason is HoldReason.DECODES_FIRST:
        return "it was the decodes' turn"
    return "it was not its turn" if reason is None else f"of this: {reason.value}"


def _different_running(yours: Step, packaged: Step) -> str | None:
    for request_id, num_tokens in yours.scheduled.items():
        if request_id not in packaged.scheduled:
            phase = "prefill" if request_id in yours.prefills else "decode"
            why = _why_not_run(request_id, packaged)
            return f"you scheduled {request_id} ({phase}, {_tokens(num_tokens)}), {why}"
    for request_id, num_tokens in packaged.scheduled.items():
        if request_id not in yours.scheduled:
            phase = "prefill" if request_id in packaged.prefills else "decode"
            return (
                f"you did not schedule {request_id}, the packaged class did "
                f"({phase}, {_tokens(num_tokens)})"
            )
    return None


def _why_not_run(request_id: str, packaged: Step) -> str:
    hidden = {r.request_id for r in getattr(packaged.scheduler, "hidden_reqs", ())}
    if request_id not in hidden:
        return "the packaged class did not"
    if packaged.prefills:
        return f"the packaged class hid it behind the prefill of {join_ids(packaged.prefills)}"
    return "the packaged class hid it"


def _different_counts(yours: Step, packaged: Step) -> str | None:
    for request_id, num_tokens in packaged.scheduled.items():
        if yours.scheduled[request_id] != num_tokens:
            return (
                f"you scheduled {_tokens(yours.scheduled[request_id])} of {request_id}, "
                f"the packaged class {num_tokens}"
            )
    return None


def _different_padding(yours: Step, packaged: Step) -> str | None:
    if packaged.padded is None or yours.padded == packaged.padded:
        return None
    if yours.padded is None:
        return "your output has no num_scheduled_tokens_padded"
    for request_id, num_tokens in packaged.padded.items():
        found = yours.padded.get(request_id)
        if found != num_tokens:
            return (
                f"you padded {request_id} to {found} ({packaged.scheduled[request_id]} actual), "
                f"the packaged class to {num_tokens}{_say_lost(request_id, packaged)}"
            )
    return f"you padded {join_ids(sorted(yours.padded.keys() - packaged.padded.keys()))} as well"


def _say_lost(request_id: str, packaged: Step) -> str:
    """Explain a prefill of a request that lost its KV blocks and reads its tokens again."""
    if request_id not in packaged.lost or request_id not in packaged.prefills:
        return ""
    num_computed = packaged.computed[request_id]
    return (
        f"; {request_id} lost its KV blocks in step {packaged.lost[request_id]}, and of its "
        f"{num_computed + packaged.remaining[request_id]} tokens {num_computed} are computed again"
    )


def describe_pacing(packaged: Step) -> str | None:
    """Say how long decodes had waited before the step, where a setting limits that."""
    scheduler = packaged.scheduler
    config = getattr(scheduler, "neuron_config", None)
    if config is None or packaged.waited is None:
        return None
    num_prefills, num_tokens = packaged.waited
    parts = []
    if (limit := config.max_consecutive_prefills) is not None:
        steps = "1 prefill step" if num_prefills == 1 else f"{num_prefills} prefill steps"
        parts.append(f"decodes had waited for {steps} in a row (limit {limit})")
    if (limit := config.max_decode_stall_tokens) is not None:
        parts.append(f"decodes had waited for {_tokens(num_tokens)}{_next_chunk(packaged)}")
        parts[-1] += f" (limit {limit})"
    return "; ".join(parts) or None


def _next_chunk(packaged: Step) -> str:
    """Say how many tokens the next prefill would make decodes wait, padding included."""
    candidates = [*sorted(packaged.prefilling), *packaged.waiting]
    if not candidates:
        return ""
    buckets = packaged.scheduler.neuron_config.num_batched_tokens_buckets
    num_tokens = min(packaged.remaining[candidates[0]], buckets[-1])
    chunk = get_bucket_for_count(num_tokens, buckets)
    return f", the next chunk of {candidates[0]} takes {chunk}"


def _different_queues(yours: Step, packaged: Step) -> str | None:
    if yours.waiting_after != packaged.waiting_after:
        return (
            f"you left the waiting queue as {join_ids(yours.waiting_after)}, "
            f"the packaged class as {join_ids(packaged.waiting_after)}"
        )
    if yours.running_after != packaged.running_after:
        return (
            f"you left the running queue as {join_ids(yours.running_after)}, "
            f"the packaged class as {join_ids(packaged.running_after)}"
        )
    return None


def _different_extra(yours: Step, packaged: Step) -> str | None:
    noted = (
        packaged.extra if packaged.state is None else {"state": packaged.state, **packaged.extra}
    )
    for name, expected in noted.items():
        found = yours.state if name == "state" else yours.extra[name]
        if found != expected:
            prefills = join_ids(packaged.prefills) if packaged.prefills else "nothing"
            return (
                f"your {name} is {_value(found)}, the packaged class's is {_value(expected)}; "
                f"the step prefilled {prefills}"
            )
    return None


def _different_returned(yours: Step, packaged: Step) -> str | None:
    for name, expected in packaged.returned.items():
        found = yours.returned.get(name)
        if found != expected:
            return f"your {name}() returned {found}, the packaged class's {expected}"
    return None


def _value(value: Any) -> str:
    value = getattr(value, "request_id", value)
    return str(getattr(value, "value", value))


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"
