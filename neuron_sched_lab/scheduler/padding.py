"""Lesson 4: PaddedScheduler says how large each prefill's tensor will be.

A prefill chunk is padded up to the next bucket. The padded count belongs to the tensor, never to
the accounting: vLLM advances `num_computed_tokens` by `num_scheduled_tokens`, and would run past
the prompt if padding were in there (5000 - 8192 = -3192 tokens left). Hence two fields.

Source: the seed, "Padding Algorithm" (steps 6 and 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .buckets import get_bucket_for_count
from .separation import SeparatedScheduler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


def get_scheduled_prefills(output: SchedulerOutput, requests: Mapping[str, Request]) -> list[str]:
    """Return the ids of the requests that a SchedulerOutput prefills.

    A request that comes from a waiting queue, new or resumed, is a prefill. A running one is
    judged by the counts *in the output*: they are those before the step, while the Request's own
    were advanced when `schedule()` returned.
    """
    prefills = [new_req.req_id for new_req in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    resumed = cached.resumed_req_ids
    counts = zip(cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True)
    for req_id, num_computed, num_output in counts:
        # is_prefill() spelled out, for this is asked for every decode in every step.
        num_older = requests[req_id].num_prompt_tokens + (num_output - 1 if num_output else 0)
        if num_computed < num_older or req_id in resumed:
            prefills.append(req_id)
    return prefills


class PaddedScheduler(SeparatedScheduler):
    """Adds `num_scheduled_tokens_padded` to the output, and refuses an impure batch.

    `num_scheduled_tokens` stays the actual count. `num_scheduled_tokens_padded` maps each
    scheduled request to the tokens of its tensor row: the bucket for a prefill chunk, the actual
    count for a decode, whose batch is padded in the other direction, by the model runner.

    Against the seed's text: the purity check (step 7) runs *before* vLLM's scheduler commits
    anything. After it, an error comes too late: tokens would count as computed that never were
    (hole B7).

    Attributes:
        num_batched_tokens_buckets: prefill ladder, in tokens.
        num_seqs_buckets: decode ladder, in sequences, for the model runner.
        total_padding_tokens: padding tokens scheduled so far.
        scheduled_prefills: ids of the requests that the last step prefills.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_batched_tokens_buckets = list(self.neuron_config.num_batched_tokens_buckets)
        self.num_seqs_buckets = list(self.neuron_config.num_seqs_buckets)
        self.total_padding_tokens = 0
        self.scheduled_prefills: list[str] = []

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule one step and pad it."""
        output = super().schedule(throttle_prefills)
        return self._apply_padding_and_log_stats(output)

    def _call_base_schedule(self) -> SchedulerOutput:
        self._verify_visible_batch()
        return super()._call_base_schedule()

    def _verify_visible_batch(self) -> None:
        """Step 7, moved before step 4: what vLLM is about to see is one prefill or only decodes.

        Raises:
            RuntimeError: a subclass shows a mixed batch. Nothing was scheduled or lost.
        """
        in_running = len(self._get_running_prefills())
        prefill_count = len(self.admitted_from) + in_running
        decode_count = len(self.running) - in_running
        if prefill_count and decode_count:
            raise RuntimeError(
                f"Neuron constraint violated: mixed prefill ({prefill_count}) and decode "
                f"({decode_count}) in the same batch; hide one phase before _call_base_schedule()"
            )
        if prefill_count > self.max_prefills_per_batch:
            raise RuntimeError(
                f"Neuron constraint violated: {prefill_count} prefills in one batch, at most "
                f"{self.max_prefills_per_batch} allowed; reject the others in can_schedule()"
            )

    def _apply_padding_and_log_stats(self, scheduler_output: SchedulerOutput) -> SchedulerOutput:
        """Step 6: store the tensor size of every scheduled request beside its actual count."""
        padded = dict(scheduler_output.num_scheduled_tokens)
        self.scheduled_prefills = get_scheduled_prefills(scheduler_output, self.requests)
        for req_id in self.scheduled_prefills:
            num_tokens = padded[req_id]
            padded[req_id] = self._calculate_padded_count(num_tokens)
            self.total_padding_tokens += padded[req_id] - num_tokens
        scheduler_output.num_scheduled_tokens_padded = padded
        return scheduler_output

    def _calculate_padded_count(self, token_count: int) -> int:
        """Return the smallest prefill bucket that holds `token_count`; 0 stays 0."""
        if token_count == 0:
            return 0
        return get_bucket_for_count(token_count, self.num_batched_tokens_buckets)
