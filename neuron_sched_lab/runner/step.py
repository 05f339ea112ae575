"""Reading a SchedulerOutput: one prefill or some decodes, with padding; anything else is refused.

Source: the seed, "Prefill/Decode Separation" and "Model Runner Integration".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..scheduler.padding import get_scheduled_prefills
from .request_table import get_prefill_token_ids

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from .request_table import RequestState

_FIX = 'use a scheduler that does, such as scheduler_cls="neuron_sched_lab.NeuronScheduler"'


class PrefillStep(NamedTuple):
    """One chunk of one prompt.

    Attributes:
        req_id: whose.
        num_computed_tokens: tokens in the cache before the chunk.
        num_tokens: actual tokens of the chunk.
        num_padded_tokens: its tensor's length, a bucket.
        is_last_chunk: whether a token is sampled after it.
    """

    req_id: str
    num_computed_tokens: int
    num_tokens: int
    num_padded_tokens: int
    is_last_chunk: bool


class DecodeStep(NamedTuple):
    """One token of each request.

    Attributes:
        req_ids: whose, in the scheduler's order.
        num_computed_tokens: tokens in the cache before the step, of each.
    """

    req_ids: list[str]
    num_computed_tokens: list[int]


def read_step(
    output: SchedulerOutput, requests: Mapping[str, RequestState]
) -> PrefillStep | DecodeStep:
    """Return what a non-empty SchedulerOutput asks for.

    Args:
        output: of one step.
        requests: every request that it names.

    Raises:
        RuntimeError: the step mixes phases, prefills more than one request, or lacks padding.
    """
    prefills = get_scheduled_prefills(output, requests)
    decodes = [req_id for req_id in output.num_scheduled_tokens if req_id not in prefills]
    if prefills and decodes:
        raise RuntimeError(
            f"mixed batch: prefill of {prefills} together with decode of {decodes}; a Neuron "
            f"graph runs one phase, so a step must be separated; {_FIX}"
        )
    if len(prefills) > 1:
        raise RuntimeError(
            f"{len(prefills)} prefills in one batch: {prefills}; a Neuron prefill graph runs one "
            f"request, so a scheduler must let in one at a time; {_FIX}"
        )
    padded = getattr(output, "num_scheduled_tokens_padded", None)
    if padded is None:
        raise RuntimeError(
            f"num_scheduled_tokens_padded: missing from the SchedulerOutput for "
            f"{prefills or decodes}; the scheduler must say how long each tensor is; {_FIX}"
        )
    if prefills:
        return _read_prefill(output, requests[prefills[0]], padded)
    return _read_decode(output)


def _read_prefill(
    output: SchedulerOutput, request: RequestState, padded: Mapping[str, int]
) -> PrefillStep:
    req_id = request.req_id
    num_tokens = output.num_scheduled_tokens[req_id]
    num_padded_tokens = padded.get(req_id, 0)
    if num_padded_tokens < num_tokens:
        raise RuntimeError(
            f"num_scheduled_tokens_padded: {num_padded_tokens} for {req_id!r} is less than its "
            f"{num_tokens} scheduled tokens; it must be a bucket that holds them"
        )
    cached = output.scheduled_cached_reqs
    if req_id in cached.req_ids:
        index = cached.req_ids.index(req_id)
        num_computed_tokens = cached.num_computed_tokens[index]
        num_known_tokens = request.num_prompt_tokens + cached.num_output_tokens[index]
    else:
        (new_req,) = output.scheduled_new_reqs
        num_computed_tokens = new_req.num_computed_tokens
        num_known_tokens = len(get_prefill_token_ids(new_req))
    return PrefillStep(
        req_id=req_id,
        num_computed_tokens=num_computed_tokens,
        num_tokens=num_tokens,
        num_padded_tokens=num_padded_tokens,
        is_last_chunk=num_computed_tokens + num_tokens >= num_known_tokens,
    )


def _read_decode(output: SchedulerOutput) -> DecodeStep:
    cached = output.scheduled_cached_reqs
    for req_id, num_tokens in output.num_scheduled_tokens.items():
        if num_tokens != 1:
            raise RuntimeError(
                f"decode of {req_id!r} has {num_tokens} tokens; a decode graph takes one of each "
                f"request; switch speculative decoding off"
            )
    return DecodeStep(cached.req_ids, cached.num_computed_tokens)
