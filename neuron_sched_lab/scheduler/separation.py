"""Lesson 3: SeparatedScheduler keeps prefills and decodes in separate steps.

Neuron compiles one graph for prefill and another for decode; a batch that mixes the two phases
has no graph to run on. Hiding works for running requests as it does for waiting ones: show
vLLM's scheduler one phase, hide the other, restore.

Source: the seed, "Prefill/Decode Separation" (step 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .buckets import get_bucket_for_count
from .config import NeuronConfig
from .holdback import HoldbackScheduler, HoldReason

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

RETRY_REFUSED_PREFILL_AFTER = 16
"""Decode steps after which a refused prefill gets another look, whatever the KV cache says: what
refused it may be something the scheduler cannot see, such as a KV connector."""


@dataclass(frozen=True)
class _Refusal:
    """A prefill that vLLM would not start or continue although it had the step to itself."""

    request_id: str
    num_free_blocks: int
    num_running: int
    step: int


class SeparatedScheduler(HoldbackScheduler):
    """Shows vLLM either prefills or decodes, never both.

    A prefill has priority; the decodes that it hides wait for it. That is the seed's rule, and it
    has a price that lesson 3 measures: decodes stall behind prefills.

    Against the seed's text: hidden decodes are restored *before* the visible requests, so that
    the running queue stays in order of age and vLLM would preempt the newest (hole B5); when a
    prefill that hides decodes is refused, the decodes get the next step, so the seed's deadlock
    costs one empty step instead of all that follow (B2, `progress_guard`); decodes can be given
    a turn after `max_consecutive_prefills` prefill steps, or before they have waited for more than
    `max_decode_stall_tokens` (B9); vLLM's KV watermark and its throttling of prefills count the
    hidden decodes (B12).

    Attributes:
        progress_guard: False brings the seed's behaviour back, for lesson 5.
        hidden_reqs: the running requests that were hidden in the last step.
        held_decodes: those of them that would have had to wait in a decode step too; see
            `_get_ready_decodes`.
    """

    progress_guard = True
    _holds_decodes = False  # a class whose _get_ready_decodes leaves some out says True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.neuron_config = NeuronConfig.from_vllm_config(self.vllm_config)
        self.running_holdback: list[Request] = []
        self.hidden_reqs: list[Request] = []
        self.held_decodes: list[Request] = []
        self._running_order: list[Request] = []
        self._prefill: Request | None = None
        self._refusal: _Refusal | None = None
        self._num_consecutive_prefills = 0
        self._num_stall_tokens = 0
        if self.kv_cache_manager.watermark_blocks:
            self._count_hidden_for_watermark()

    def _schedule_visible(self) -> SchedulerOutput:
        self._hide_other_phase()
        try:
            output = super()._schedule_visible()
        finally:
            self._restore_running()
        self._note_progress(output)
        return output

    def _hide_other_phase(self) -> None:
        """Step 3: the three branches."""
        self._prefill = None
        self.held_decodes = []
        if prefills := self._get_running_prefills():
            # A prompt in several chunks is under way.
            decodes = [r for r in self.running if not self._is_prefill_request(r)]
            if decodes and self._decodes_go_first(prefills[0]) and self._show_decodes(decodes):
                return
            self.running, self.running_holdback = prefills, decodes
            self._prefill = prefills[0]
        elif self.admitted_from:
            # A new prefill was admitted.
            self.running, self.running_holdback = [], self.running
            self._prefill = next(iter(self.admitted_from))
        elif self._holds_decodes:
            self._show_decodes(self.running)
        # Else decodes only: nothing to hide.

    def _show_decodes(self, decodes: list[Request]) -> bool:
        """Hide all but the decodes that may run now; tell whether there are any."""
        ready = self._get_ready_decodes(decodes)
        if len(ready) < len(self.running):
            shown = set(ready)
            self.held_decodes = [r for r in decodes if r not in shown]
            self.running_holdback = [r for r in self.running if r not in shown]
            self._running_order, self.running = self.running, ready
        return bool(ready)

    def _get_ready_decodes(self, decodes: list[Request]) -> list[Request]:
        """Return the decodes that may run now. Here all; lesson 5's banker lets some wait."""
        return decodes

    def _restore_running(self) -> None:
        """Step 5 for the running queue: oldest first."""
        hidden, visible = self.running_holdback, self.running
        self.hidden_reqs, self.running_holdback = hidden, []
        if hidden and self._prefill is not None:
            # The prefill is the newest: it was the last to be admitted.
            self.running = hidden + visible
        elif hidden:
            still = {*hidden, *visible}
            self.running = [r for r in self._running_order if r in still]

    def can_schedule(self, request: Request) -> bool:
        """Also hold a new prefill back when it is the decodes' turn."""
        if not super().can_schedule(request):
            return False
        if self.running and self._decodes_go_first(request):
            return self._hold(HoldReason.DECODES_FIRST)
        return True

    def _decodes_go_first(self, prefill: Request) -> bool:
        """Tell whether decodes, which exist, take the step that `prefill` asks for."""
        return (
            self._have_decodes_waited_enough(prefill)
            or (self._throttle_prefills and not self.prefill_capacity_bound)
            or (self.progress_guard and self._is_still_refused(prefill))
        )

    def _have_decodes_waited_enough(self, prefill: Request) -> bool:
        """Tell whether the next chunk of `prefill` would exceed a limit of pacing."""
        max_prefills = self.neuron_config.max_consecutive_prefills
        if max_prefills is not None and self._num_consecutive_prefills >= max_prefills:
            return True
        max_tokens = self.neuron_config.max_decode_stall_tokens
        if max_tokens is None:
            return False
        # A prefix hit may make the chunk shorter, never longer.
        remaining = prefill.num_tokens - prefill.num_computed_tokens
        buckets = self.neuron_config.num_batched_tokens_buckets
        chunk = get_bucket_for_count(min(remaining, buckets[-1]), buckets)
        return self._num_stall_tokens + chunk > max_tokens

    def _is_still_refused(self, prefill: Request) -> bool:
        """True until something has changed since vLLM refused this prefill."""
        refusal = self._refusal
        if refusal is None:
            return False
        if refusal.step == self.current_step:
            # The last step was lost to a refusal. Whoever stands in front now, decodes are next:
            # two prefills that push each other out would otherwise share all steps between them.
            return True
        return (
            refusal.request_id == prefill.request_id
            and self._num_free_blocks <= refusal.num_free_blocks
            and len(self.running) >= refusal.num_running
            and self.current_step - refusal.step < RETRY_REFUSED_PREFILL_AFTER
        )

    def _note_progress(self, output: SchedulerOutput) -> None:
        """Remember what the next turn depends on: a refusal, and how long decodes have waited."""
        prefill, scheduled = self._prefill, output.total_num_scheduled_tokens > 0
        waited = prefill is not None and bool(self.hidden_reqs)
        if scheduled and waited:
            self._num_consecutive_prefills += 1
            if self.neuron_config.max_decode_stall_tokens is not None:
                self._num_stall_tokens += get_bucket_for_count(
                    output.total_num_scheduled_tokens,
                    self.neuron_config.num_batched_tokens_buckets,
                )
        elif scheduled:
            self._num_consecutive_prefills = self._num_stall_tokens = 0
        if prefill is not None and waited and not scheduled:
            self._refusal = _Refusal(
                prefill.request_id, self._num_free_blocks, len(self.running), self.current_step
            )
        elif prefill is not None or not scheduled:
            # The prefill ran, or the decodes cannot: either way the refusal is history.
            self._refusal = None

    @property
    def _num_free_blocks(self) -> int:
        return self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _count_hidden_for_watermark(self) -> None:
        """Make vLLM keep its watermark of free blocks for decodes that it does not see.

        vLLM applies the watermark if `bool(self.running)`, and asks that of a view from which
        the decodes were taken.
        """
        allocate_slots = self.kv_cache_manager.allocate_slots

        def allocate(*args: Any, has_scheduled_reqs: bool = True, **kwargs: Any) -> Any:
            has_running = has_scheduled_reqs or bool(self.running_holdback)
            return allocate_slots(*args, has_scheduled_reqs=has_running, **kwargs)

        self.kv_cache_manager.allocate_slots = partial(allocate)

    def get_request_counts(self) -> tuple[int, int]:
        """Return (running, waiting), those hidden included, even in the middle of a step."""
        num_running, num_waiting = super().get_request_counts()
        return num_running + len(self.running_holdback), num_waiting
