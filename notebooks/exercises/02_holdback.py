# ruff: noqa: F811
"""Exercises of 02_holdback.ipynb: what the learner finds, and what solves it."""

from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import HoldReason


# %% exercise: holdback
# %% skeleton
class MyHoldbackScheduler(Scheduler):
    """Lets at most one waiting request into a step, in queue order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_num_seqs = self.scheduler_config.max_num_seqs
        self.holdback_queue = create_request_queue(self.policy)

    def schedule(self, throttle_prefills=False):
        self.set_aside()
        self.restore_admitted()
        output = super().schedule(throttle_prefills)  # step 4: vLLM's own scheduler
        self.restore_rest()
        return output

    def can_schedule(self, request):
        # Is a seat free, does nobody read a prompt, and was nobody admitted in this step?
        raise NotImplementedError

    def set_aside(self):
        raise NotImplementedError  # step 1

    def restore_admitted(self):
        raise NotImplementedError  # step 2

    def restore_rest(self):
        raise NotImplementedError  # step 5
# %% solution
class MyHoldbackScheduler(Scheduler):
    """Lets at most one waiting request into a step, in queue order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_num_seqs = self.scheduler_config.max_num_seqs
        self.holdback_queue = create_request_queue(self.policy)

    def schedule(self, throttle_prefills=False):
        self.set_aside()
        self.restore_admitted()
        output = super().schedule(throttle_prefills)  # step 4: vLLM's own scheduler
        self.restore_rest()
        return output

    def can_schedule(self, request):
        at_capacity = len(self.running) >= self.max_num_seqs
        reading = any(r.num_computed_tokens < r.num_prompt_tokens for r in self.running)
        return not (at_capacity or reading or self.waiting)

    def set_aside(self):
        while self.waiting:
            self.holdback_queue.add_request(self.waiting.pop_request())

    def restore_admitted(self):
        while self.holdback_queue and self.can_schedule(self.holdback_queue.peek_request()):
            self.waiting.add_request(self.holdback_queue.pop_request())

    def restore_rest(self):
        while self.holdback_queue:
            self.waiting.add_request(self.holdback_queue.pop_request())

# %% exercise: starts
# %% skeleton
# In which step does each request start? A list of five numbers: r0, r1, r2, r3, r4.
MY_STARTS = None
# %% solution
# In which step does each request start? A list of five numbers: r0, r1, r2, r3, r4.
MY_STARTS = [1, 2, 7, 9, 10]

# %% exercise: reason
# %% skeleton
class MyExplainingScheduler(MyHoldbackScheduler):
    """Notes in `hold_reason` why the head of the queue was held back, or None."""

    hold_reason = None

    def schedule(self, throttle_prefills=False):
        self.hold_reason = None
        return super().schedule(throttle_prefills)

    def can_schedule(self, request):
        # Set self.hold_reason to HoldReason.AT_CAPACITY, PREFILL_IN_PROGRESS or
        # PREFILL_BATCH_FULL where it applies, in this order, and answer as before.
        raise NotImplementedError
# %% solution
class MyExplainingScheduler(MyHoldbackScheduler):
    """Notes in `hold_reason` why the head of the queue was held back, or None."""

    hold_reason = None

    def schedule(self, throttle_prefills=False):
        self.hold_reason = None
        return super().schedule(throttle_prefills)

    def can_schedule(self, request):
        if len(self.running) >= self.max_num_seqs:
            self.hold_reason = HoldReason.AT_CAPACITY
        elif any(r.num_computed_tokens < r.num_prompt_tokens for r in self.running):
            self.hold_reason = HoldReason.PREFILL_IN_PROGRESS
        elif self.waiting:
            self.hold_reason = HoldReason.PREFILL_BATCH_FULL
        else:
            return True
        return False

# %% exercise: swap
# %% skeleton
class MySwappingScheduler(MyHoldbackScheduler):
    """Does the same with two moves a step at most, however many requests wait."""

    def set_aside(self):
        raise NotImplementedError

    def restore_rest(self):
        raise NotImplementedError
# %% solution
class MySwappingScheduler(MyHoldbackScheduler):
    """Does the same with two moves a step at most, however many requests wait."""

    def set_aside(self):
        self.waiting, self.holdback_queue = self.holdback_queue, self.waiting

    def restore_rest(self):
        # Whoever vLLM did not take, or preempted, goes back in front of those who were held back.
        for request in reversed(list(self.waiting)):
            self.holdback_queue.prepend_request(request)
            self.waiting.remove_request(request)
        self.waiting, self.holdback_queue = self.holdback_queue, self.waiting
