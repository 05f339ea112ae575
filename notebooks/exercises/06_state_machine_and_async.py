# ruff: noqa: F811
"""Exercises of 06_state_machine_and_async.ipynb: what the learner finds, and what solves it."""

from neuron_sched_lab import KVAdmissionScheduler
from neuron_sched_lab.scheduler import SchedulerState, Transition

IDLE, PREFILL, DECODE = SchedulerState


# %% exercise: state
# %% skeleton
class MyStateScheduler(KVAdmissionScheduler):
    """Knows after each step whether it is idle, reads a prompt, or writes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state = IDLE
        self.last_transition = Transition(0, IDLE, IDLE, "no request yet")

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        self._update_state(output)
        return output

    def enter(self, state, cause):
        self.last_transition = Transition(self.current_step, self.state, state, cause)
        self.state = state

    def _update_state(self, scheduler_output):
        # No request left: enter IDLE. Else enter PREFILL or DECODE, by what the step runs.
        # A step that runs nothing, with requests left, changes nothing.
        raise NotImplementedError

    def is_prefill_step(self, scheduler_output):
        # By the counts in the output, which are those from before the step.
        raise NotImplementedError
# %% solution
class MyStateScheduler(KVAdmissionScheduler):
    """Knows after each step whether it is idle, reads a prompt, or writes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state = IDLE
        self.last_transition = Transition(0, IDLE, IDLE, "no request yet")

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        self._update_state(output)
        return output

    def enter(self, state, cause):
        self.last_transition = Transition(self.current_step, self.state, state, cause)
        self.state = state

    def _update_state(self, scheduler_output):
        if sum(self.get_request_counts()) == 0:
            self.enter(IDLE, "no request left")
        elif scheduler_output.num_scheduled_tokens:
            if self.is_prefill_step(scheduler_output):
                self.enter(PREFILL, "a prompt is read")
            else:
                self.enter(DECODE, "only decodes run")

    def is_prefill_step(self, scheduler_output):
        cached = scheduler_output.scheduled_cached_reqs
        if scheduler_output.scheduled_new_reqs or cached.resumed_req_ids:
            return True
        return any(
            num_computed_tokens < self.requests[request_id].num_prompt_tokens
            for request_id, num_computed_tokens in zip(
                cached.req_ids, cached.num_computed_tokens, strict=True
            )
        )

# %% exercise: counts
# %% skeleton
MY_COUNTS = None  # num_computed_tokens after steps 1, 2, 3 and 4
# %% solution
MY_COUNTS = [128, 256, 300, 301]  # num_computed_tokens after steps 1, 2, 3 and 4

# %% exercise: idle
# %% skeleton
class MyIdleScheduler(MyStateScheduler):
    """Is IDLE as soon as the last request has ended, not a step later."""

    def update_from_output(self, scheduler_output, model_runner_output):
        raise NotImplementedError

    def finish_requests(self, request_ids, finished_status):
        raise NotImplementedError
# %% solution
class MyIdleScheduler(MyStateScheduler):
    """Is IDLE as soon as the last request has ended, not a step later."""

    def update_from_output(self, scheduler_output, model_runner_output):
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.enter_idle_if_empty("all decode complete and no prefill waiting")
        return outputs

    def finish_requests(self, request_ids, finished_status):
        requests = super().finish_requests(request_ids, finished_status)
        self.enter_idle_if_empty("last request aborted")
        return requests

    def enter_idle_if_empty(self, cause):
        if self.state is not IDLE and sum(self.get_request_counts()) == 0:
            self.enter(IDLE, cause)

# %% exercise: feeds
# %% skeleton
def my_count_device_feeds(steps):
    """Return how many decode steps take their input tokens from the device.

    steps: a pair for each step that ran, in order: its phase, "prefill" or "decode", and a list
    of the ids of the requests in it. (No prompt here needs more than one step.)
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_count_device_feeds(steps):
    """Return how many decode steps take their input tokens from the device.

    steps: a pair for each step that ran, in order: its phase, "prefill" or "decode", and a list
    of the ids of the requests in it. (No prompt here needs more than one step.)
    """
    count, last_ids = 0, None
    for phase, ids in steps:
        if phase == "decode" and ids == last_ids:
            count += 1
        last_ids = ids
    return count
