"""The Neuron scheduler of AWS's design document, taken literally. A test asset, not for use.

Every method does what the document's listing does, faults included, so that a test can show each
fault (B1 to B14 in test_holes.py) and a benchmark has a baseline. Only what vLLM 0.29 forces was
changed: schedule() takes and hands on `throttle_prefills`, and the padded counts become an
attribute set on vLLM's SchedulerOutput, which has no such field.

What the document describes without printing it is filled in as plainly as possible and marked
"not printed".
"""

from collections import deque
from enum import Enum

from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class SchedulerState(Enum):
    IDLE = "idle"
    ACTIVE_PREFILL = "active_prefill"
    ACTIVE_DECODE = "active_decode"


def get_default_num_batched_tokens_buckets(max_num_batched_tokens: int) -> list[int]:
    """Powers of two from 128 up; the last need not equal the maximum (B8)."""
    buckets = []
    current = 128
    while current <= max_num_batched_tokens:
        buckets.append(current)
        current *= 2
    return buckets


def get_bucket_for_count(count: int, buckets: list[int]) -> int:
    """Not printed; the smallest bucket >= count. StopIteration when there is none."""
    return next(bucket for bucket in buckets if bucket >= count)


def validate_buckets(name: str, buckets: list[int], last: int) -> list[int]:
    """Not printed; the two rules that the document states for custom lists."""
    if buckets != sorted(buckets) or buckets[-1] != last:
        raise ValueError(f"{name}: {buckets} must ascend and end in {last}")
    return buckets


class NeuronScheduler(Scheduler):
    """The document's NeuronScheduler."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.holdback_queue: deque[Request] = deque()
        self.max_prefills_per_batch = 1
        self.max_num_seqs = self.scheduler_config.max_num_seqs
        self.total_padding_tokens = 0
        self._state = SchedulerState.IDLE
        self._read_neuron_config()
        self._max_kv_concurrent = self._compute_max_kv_concurrent()

    def _read_neuron_config(self) -> None:
        """Not printed; additional_config["neuron_config"], defaults where a key is absent."""
        neuron_config = (self.vllm_config.additional_config or {}).get("neuron_config") or {}
        max_tokens = min(self.scheduler_config.max_num_batched_tokens, self.max_model_len)
        if custom := neuron_config.get("num_batched_tokens_buckets"):
            self.num_batched_tokens_buckets = validate_buckets(
                "num_batched_tokens_buckets", custom, max_tokens
            )
        else:
            self.num_batched_tokens_buckets = get_default_num_batched_tokens_buckets(max_tokens)
        self.num_seqs_buckets = validate_buckets(
            "num_seqs_buckets",
            neuron_config.get("num_seqs_buckets") or [self.max_num_seqs],
            self.max_num_seqs,
        )

    def _compute_max_kv_concurrent(self) -> int:
        if self.kv_cache_config.kv_cache_groups:
            max_concurrency = get_max_concurrency_for_kv_cache_config(
                self.vllm_config, self.kv_cache_config
            )
            max_concurrent = int(max_concurrency)
        else:
            total_kv_tokens = self.kv_cache_config.num_blocks * self.block_size
            max_concurrent = total_kv_tokens // self.max_model_len
        return max_concurrent if max_concurrent > 0 else self.max_num_seqs

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        # Step 1: Move waiting -> holdback (clear parent's view)
        while self.waiting:
            self.holdback_queue.append(self.waiting.popleft())

        # Step 2: Selectively restore based on can_schedule()
        while self.holdback_queue:
            if self.can_schedule(self.holdback_queue[0]):
                self.waiting.append(self.holdback_queue.popleft())
            else:
                break  # Preserve FIFO order

        # Step 3: Separate prefill/decode (three branches)
        running_holdback = []
        if self.has_prefill_in_running:
            running_holdback = [r for r in self.running if not self._is_prefill_request(r)]
            self.running = [r for r in self.running if self._is_prefill_request(r)]
        elif len(self.waiting) > 0:
            running_holdback = self.running
            self.running = []

        # Step 4: Let parent scheduler do its work
        scheduler_output = self._call_base_schedule(throttle_prefills)

        # Step 5: Restore everything
        self.running = self.running + running_holdback
        while self.holdback_queue:
            self.waiting.append(self.holdback_queue.popleft())

        # Steps 6 and 7: Apply padding, verify
        scheduler_output = self._apply_padding_and_log_stats(scheduler_output)

        # Step 8: Update state machine
        self._update_state(scheduler_output)
        return scheduler_output

    def _call_base_schedule(self, throttle_prefills: bool) -> SchedulerOutput:
        return Scheduler.schedule(self, throttle_prefills)

    def can_schedule(self, request: Request) -> bool:
        if self.at_capacity:
            return False
        if self.has_prefill_in_running:
            return False
        if len(self.waiting) >= self.max_prefills_per_batch:
            return False
        return len(self.running) < self._max_kv_concurrent

    @property
    def at_capacity(self) -> bool:
        return len(self.running) >= self.max_num_seqs

    @property
    def has_prefill_in_running(self) -> bool:
        return any(self._is_prefill_request(request) for request in self.running)

    def _is_prefill_request(self, request: Request) -> bool:
        return request.num_computed_tokens < request.num_prompt_tokens

    def _calculate_padded_count(self, token_count: int) -> int:
        if token_count == 0:
            return 0
        return get_bucket_for_count(token_count, self.num_batched_tokens_buckets)

    def _apply_padding_and_log_stats(self, scheduler_output: SchedulerOutput) -> SchedulerOutput:
        scheduler_output.num_scheduled_tokens_padded = {}
        req_num_computed = {
            new_req.req_id: new_req.num_computed_tokens
            for new_req in scheduler_output.scheduled_new_reqs
        }
        cached_reqs = scheduler_output.scheduled_cached_reqs
        req_num_computed.update(
            zip(cached_reqs.req_ids, cached_reqs.num_computed_tokens, strict=True)
        )
        prefill_count = decode_count = 0
        for req_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.requests.get(req_id)
            if request is None:
                continue
            num_computed = req_num_computed.get(req_id, request.num_computed_tokens)
            if num_computed < request.num_prompt_tokens:
                prefill_count += 1
                padded_tokens = self._calculate_padded_count(num_tokens)
                scheduler_output.num_scheduled_tokens_padded[req_id] = padded_tokens
                self.total_padding_tokens += padded_tokens - num_tokens
            else:
                decode_count += 1
                scheduler_output.num_scheduled_tokens_padded[req_id] = num_tokens

        if prefill_count > 0 and decode_count > 0:
            raise RuntimeError(
                f"Neuron constraint violated: Mixed prefill ({prefill_count}) "
                f"and decode ({decode_count}) in the same batch."
            )
        return scheduler_output

    def _update_state(self, scheduler_output: SchedulerOutput) -> None:
        if len(self.waiting) == 0 and len(self.running) == 0:
            self._state = SchedulerState.IDLE
        elif scheduler_output.num_scheduled_tokens:
            has_prefill = False
            for new_req in scheduler_output.scheduled_new_reqs:
                request = self.requests.get(new_req.req_id)
                if request is not None and new_req.num_computed_tokens < request.num_prompt_tokens:
                    has_prefill = True
                    break
            if not has_prefill and scheduler_output.scheduled_cached_reqs is not None:
                cached_reqs = scheduler_output.scheduled_cached_reqs
                for i, req_id in enumerate(cached_reqs.req_ids):
                    request = self.requests.get(req_id)
                    if (
                        request is not None
                        and cached_reqs.num_computed_tokens[i] < request.num_prompt_tokens
                    ):
                        has_prefill = True
                        break
            self._state = (
                SchedulerState.ACTIVE_PREFILL if has_prefill else SchedulerState.ACTIVE_DECODE
            )


class NeuronAsyncScheduler(NeuronScheduler, AsyncScheduler):
    """The document's async variant."""

    def _call_base_schedule(self, throttle_prefills: bool) -> SchedulerOutput:
        return AsyncScheduler.schedule(self, throttle_prefills)
