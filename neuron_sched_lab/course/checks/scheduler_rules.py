"""Rules: what a scheduler must keep to in each step, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...scheduler import (
    HoldbackScheduler,
    HoldReason,
    KVAdmissionScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SchedulerState,
    SeparatedScheduler,
)
from ...scheduler.admission import get_blocks_per_request, get_max_kv_concurrent

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from .scenario_run import Step

MAX_EMPTY_IN_A_ROW = 1


class Rule(NamedTuple):
    """A rule for one step.

    Attributes:
        name: what messages call it.
        text: the rule in one sentence.
        find_breach: returns what breaks it, in words, or None.
    """

    name: str
    text: str
    find_breach: Callable[[Step], str | None]


def _nothing_lost(step: Step) -> str | None:
    if getattr(step.scheduler, "holdback_queue", None):
        ids = " ".join(r.request_id for r in step.scheduler.holdback_queue)
        return f"{ids} stayed in holdback_queue after the step, where vLLM does not look"
    for request_id, times in sorted(step.in_queues.items()):
        if times == 0:
            return f"{request_id} is in no queue after the step"
        if times > 1:
            return f"{request_id} is in the queues {times} times after the step"
    return None


def _fifo(step: Step) -> str | None:
    for request_id in step.started:
        position = step.waiting.index(request_id) if request_id in step.waiting else 0
        for earlier in step.waiting[:position]:
            if earlier not in step.started:
                return f"{request_id} started before {earlier}, which stood in front of it"
    expected = [r for r in step.waiting if r in step.waiting_after]
    # A preempted request goes to the head of the queue.
    found = [r for r in step.waiting_after if r in expected]
    if found != expected:
        return f"the waiting queue was {join_ids(expected)} and is now {join_ids(found)}"
    return None


def _capacity(step: Step) -> str | None:
    limit = step.scheduler.scheduler_config.max_num_seqs
    if len(step.running_after) > limit:
        return f"{len(step.running_after)} requests run, max_num_seqs is {limit}"
    return None


def _seats(step: Step) -> str | None:
    limit = step.scheduler.scheduler_config.max_num_seqs
    if step.shown_waiting and len(step.running) >= limit:
        ids = join_ids(step.shown_waiting)
        return f"{ids} was shown to vLLM with {limit} of {limit} seats taken"
    return None


def _one_new_request(step: Step) -> str | None:
    if len(step.started) > 1:
        return f"{join_ids(step.started)} start in the same step"
    return None


def _pure_batch(step: Step) -> str | None:
    if step.prefills and step.decodes:
        prefills, decodes = join_ids(step.prefills), join_ids(step.decodes)
        return f"prefill {prefills} shares the step with decode {decodes}"
    if len(step.prefills) > 1:
        return f"{join_ids(step.prefills)} are prefilled in the same step"
    return None


def _prefill_first(step: Step) -> str | None:
    if step.prefilling and not step.prefills:
        reading = join_ids(sorted(step.prefilling))
        return f"{reading} is in the middle of its prompt, the step ran {join_ids(step.scheduled)}"
    return None


def _age_order(step: Step) -> str | None:
    kept = [r for r in step.running if r in step.running_after]
    new = [r for r in step.running_after if r not in step.running]
    if list(step.running_after) != kept + new:
        return f"the running queue is {join_ids(step.running_after)}, by age {join_ids(kept + new)}"
    return None


def _true_accounts(step: Step) -> str | None:
    for request_id, num_tokens in step.scheduled.items():
        advanced = step.advanced.get(request_id, num_tokens)
        left = step.remaining.get(request_id, num_tokens)
        if advanced > left:
            return (
                f"num_computed_tokens of {request_id} advances by {advanced} with {left} tokens "
                f"left: {left - advanced} remain"
            )
        if num_tokens > left or num_tokens != advanced:
            return (
                f"num_scheduled_tokens of {request_id} says {num_tokens}, it computes {advanced} "
                f"of the {left} tokens left"
            )
    return None


def _padded_to_bucket(step: Step) -> str | None:
    if step.padded is None:
        return "the output has no num_scheduled_tokens_padded"
    if missing := [r for r in step.scheduled if r not in step.padded]:
        return f"num_scheduled_tokens_padded has no entry for {missing[0]}"
    buckets = step.scheduler.num_batched_tokens_buckets
    for request_id, num_tokens in step.scheduled.items():
        expected, why = num_tokens, "a decode is not padded"
        if request_id in step.prefills:
            expected = min((b for b in buckets if b >= num_tokens), default=num_tokens)
            why = f"the smallest bucket of {list(buckets)} that holds it is {expected}"
        found = step.padded[request_id]
        if found != expected:
            return f"{num_tokens} tokens of {request_id} are padded to {found}; {why}"
    return None


def _progress(step: Step) -> str | None:
    if step.empty_in_a_row > MAX_EMPTY_IN_A_ROW:
        return f"{step.empty_in_a_row} empty steps in a row, with {join_ids(step.running)} running"
    return None


def _kv_bound(step: Step) -> str | None:
    scheduler = step.scheduler
    if not step.shown_waiting:
        return None
    # Computed here, not read from the scheduler: its own bound may be what is wrong.
    bound = get_max_kv_concurrent(
        scheduler.kv_cache_config.num_blocks,
        get_blocks_per_request(scheduler.vllm_config, scheduler.kv_cache_config),
    )
    if len(step.running) >= bound:
        return (
            f"{join_ids(step.shown_waiting)} was let in with {len(step.running)} running; the "
            f"cache holds {bound} of max_model_len"
        )
    return None


def _no_preemption(step: Step) -> str | None:
    if step.preempted:
        return f"{join_ids(step.preempted)} lost its KV blocks"
    return None


def _super_first(step: Step) -> str | None:
    if step.extra.get("hold_reason") is not HoldReason.KV_SATURATED:
        return None
    limit = step.scheduler.scheduler_config.max_num_seqs
    other = None
    if len(step.running) >= limit:
        other = f"{limit} of {limit} seats are taken"
    elif step.prefilling:
        other = f"{join_ids(sorted(step.prefilling))} is still reading its prompt"
    return other and f"hold_reason is {HoldReason.KV_SATURATED.value!r}, though {other}"


def _idle(step: Step) -> str | None:
    if not step.in_queues and step.state != SchedulerState.IDLE.value:
        return f"no request is left, and the state is {step.state}"
    return None


def _empty_step(step: Step) -> str | None:
    if step.scheduled or not step.in_queues or step.state == step.state_before:
        return None
    left = join_ids(sorted(step.in_queues))
    return f"it went from {step.state_before} to {step.state}, with {left} left"


def _handed_on(step: Step) -> str | None:
    for name, value in step.returned.items():
        if value is None:
            return f"{name}() returned None"
    return None


def _true_state(step: Step) -> str | None:
    if not step.scheduled:
        return None  # see _idle and _empty_step
    expected = SchedulerState.ACTIVE_PREFILL if step.prefills else SchedulerState.ACTIVE_DECODE
    if step.state != expected.value:
        return f"the step ran {join_ids(step.scheduled)}, that is {expected.value}"
    return None


BASE_RULES = (
    Rule("nothing lost", "after a step each request is in one queue", _nothing_lost),
    Rule("FIFO", "who came first starts first, and the queue keeps its order", _fifo),
    Rule("capacity", "at most max_num_seqs requests run", _capacity),
    Rule("age order", "the running queue stays oldest first", _age_order),
    Rule(
        "true accounts",
        "num_scheduled_tokens is what is computed, no padding in it",
        _true_accounts,
    ),
    Rule("progress", "a step is not empty while something could run", _progress),
    Rule(
        "handed on",
        "update_from_output() and finish_requests() return what super() gave them",
        _handed_on,
    ),
)

PROMISES: dict[type, tuple[Rule, ...]] = {
    HoldbackScheduler: (
        Rule("seats", "nobody is let in while max_num_seqs requests run", _seats),
        Rule("one new request", "at most one request starts in a step", _one_new_request),
    ),
    SeparatedScheduler: (
        Rule("pure batch", "a step is one prefill, or decodes and nothing else", _pure_batch),
        Rule("prefill first", "a prompt that has begun is read to its end", _prefill_first),
    ),
    PaddedScheduler: (
        Rule(
            "padded is a bucket",
            "a prefill is padded to the smallest bucket that holds it, a decode is not padded",
            _padded_to_bucket,
        ),
    ),
    KVAdmissionScheduler: (
        Rule(
            "KV bound",
            "nobody is let in while the running requests may need the whole KV cache",
            _kv_bound,
        ),
        Rule("no preemption", "who has started keeps its KV blocks to the end", _no_preemption),
        Rule(
            "super first", "the class before is asked first, and its no is the reason", _super_first
        ),
    ),
    NeuronScheduler: (
        Rule("true state", "the state says what the step ran, by its counts before", _true_state),
        Rule("idle", "IDLE when no request is left", _idle),
        Rule(
            "empty step",
            "a step that runs nothing, with requests left, keeps the state",
            _empty_step,
        ),
    ),
}
"""What each packaged class promises beyond the classes it extends."""


PACING = ("max_consecutive_prefills", "max_decode_stall_tokens")
"""Settings of neuron_config by which decodes interrupt a prompt: "prefill first" does not hold."""


def rules_for(packaged: type[Scheduler], settings: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules that the packaged class promises to keep with these settings."""
    promised = [rule for cls in PROMISES if issubclass(packaged, cls) for rule in PROMISES[cls]]
    if any(name in settings.get("neuron_config", {}) for name in PACING):
        promised = [rule for rule in promised if rule.find_breach is not _prefill_first]
    return (*BASE_RULES, *promised)


def find_broken_rule(rules: tuple[Rule, ...], yours: Step, packaged: Step) -> str | None:
    """Say which rule yours breaks, the first that the packaged class keeps, and how."""
    for rule in rules:
        breach = rule.find_breach(yours)
        if breach is not None and rule.find_breach(packaged) is None:
            return f"rule broken: {rule.name} ({rule.text}): {breach}"
    return None


def join_ids(ids: Any) -> str:
    """Return request ids as words of a sentence."""
    return " ".join(ids) or "(nobody)"
