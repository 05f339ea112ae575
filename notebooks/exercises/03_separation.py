# ruff: noqa: F811
"""Exercises of 03_separation.ipynb: what the learner finds, and what solves it."""

from neuron_sched_lab.scheduler import HoldbackScheduler, SeparatedScheduler
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count


# %% exercise: separation
# %% skeleton
class MySeparatedScheduler(HoldbackScheduler):
    """Shows vLLM either prefills or decodes, never both."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hidden_reqs = []  # those of self.running that vLLM does not see in this step

    def _schedule_visible(self):
        self.hide_other_phase()
        output = super()._schedule_visible()  # step 4: vLLM's own scheduler
        self.restore_running()
        return output

    def hide_other_phase(self):
        # Three branches: who stays in self.running, who goes to self.hidden_reqs?
        raise NotImplementedError  # step 3

    def restore_running(self):
        # Everybody back into self.running, in which order?
        raise NotImplementedError  # step 5
# %% solution
class MySeparatedScheduler(HoldbackScheduler):
    """Shows vLLM either prefills or decodes, never both."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hidden_reqs = []  # those of self.running that vLLM does not see in this step

    def _schedule_visible(self):
        self.hide_other_phase()
        output = super()._schedule_visible()  # step 4: vLLM's own scheduler
        self.restore_running()
        return output

    def hide_other_phase(self):
        self.hidden_reqs = []
        if self.has_prefill_in_running:
            self.hidden_reqs = [r for r in self.running if not self._is_prefill_request(r)]
            self.running = [r for r in self.running if self._is_prefill_request(r)]
        elif self.waiting:
            self.hidden_reqs, self.running = self.running, []

    def restore_running(self):
        self.running = self.hidden_reqs + self.running

# %% exercise: phases
# %% skeleton
# One letter for each step, P for prefill and D for decode, such as "PDD".
MY_PHASES = None
# %% solution
# One letter for each step, P for prefill and D for decode, such as "PDD".
MY_PHASES = "PPPPDPDD"

# %% exercise: turns
# %% skeleton
class MyTurnsScheduler(SeparatedScheduler):
    """After `limit` prefill steps for which decodes waited, the decodes get a step."""

    limit = 2
    num_in_a_row = 0

    def _have_decodes_waited_enough(self, prefill):
        # Asked before `prefill` gets a step for which decodes would wait.
        raise NotImplementedError

    def _note_progress(self, output):
        # Called after each step, with vLLM's output.
        super()._note_progress(output)
        raise NotImplementedError
# %% solution
class MyTurnsScheduler(SeparatedScheduler):
    """After `limit` prefill steps for which decodes waited, the decodes get a step."""

    limit = 2
    num_in_a_row = 0

    def _have_decodes_waited_enough(self, prefill):
        return self.num_in_a_row >= self.limit

    def _note_progress(self, output):
        super()._note_progress(output)
        if output.total_num_scheduled_tokens:
            waited = self._prefill is not None and self.hidden_reqs
            self.num_in_a_row = self.num_in_a_row + 1 if waited else 0

# %% exercise: stall
# %% skeleton
class MyStallScheduler(SeparatedScheduler):
    """Between two decode steps, decodes wait for `limit` tokens at most, padding included."""

    limit = 96
    num_stall_tokens = 0

    def _have_decodes_waited_enough(self, prefill):
        # Would the next chunk of `prefill`, in its bucket, go beyond the limit?
        raise NotImplementedError

    def _note_progress(self, output):
        super()._note_progress(output)
        raise NotImplementedError
# %% solution
class MyStallScheduler(SeparatedScheduler):
    """Between two decode steps, decodes wait for `limit` tokens at most, padding included."""

    limit = 96
    num_stall_tokens = 0

    def _have_decodes_waited_enough(self, prefill):
        buckets = self.neuron_config.num_batched_tokens_buckets
        remaining = prefill.num_tokens - prefill.num_computed_tokens
        chunk = get_bucket_for_count(min(remaining, buckets[-1]), buckets)
        return self.num_stall_tokens + chunk > self.limit

    def _note_progress(self, output):
        super()._note_progress(output)
        num_tokens = output.total_num_scheduled_tokens
        if not num_tokens:
            return
        if self._prefill is None or not self.hidden_reqs:
            self.num_stall_tokens = 0
        else:
            buckets = self.neuron_config.num_batched_tokens_buckets
            self.num_stall_tokens += get_bucket_for_count(num_tokens, buckets)
