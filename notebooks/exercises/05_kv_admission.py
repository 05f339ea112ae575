# ruff: noqa: F811
"""Exercises of 05_kv_admission.ipynb: what the learner finds, and what solves it."""

from neuron_sched_lab import PaddedScheduler
from neuron_sched_lab.scheduler import HoldReason
from neuron_sched_lab.scheduler.admission import get_blocks_per_request
from neuron_sched_lab.scheduler.admission import get_max_kv_concurrent as max_kv_concurrent


class Unguarded(PaddedScheduler):
    progress_guard = False


# %% exercise: bound
# %% skeleton
def my_max_kv_concurrent(num_blocks, blocks_per_request):
    """Return how many requests can all grow to `max_model_len` at once, at least 1.

    num_blocks: blocks of the KV cache, vLLM's null block included.
    blocks_per_request: what one request of `max_model_len` tokens takes.
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_max_kv_concurrent(num_blocks, blocks_per_request):
    """Return how many requests can all grow to `max_model_len` at once, at least 1.

    num_blocks: blocks of the KV cache, vLLM's null block included.
    blocks_per_request: what one request of `max_model_len` tokens takes.
    """
    return max(1, (num_blocks - 1) // blocks_per_request)

# %% exercise: admission
# %% skeleton
class MyAdmissionScheduler(PaddedScheduler):
    """Starts a request only if all that run can then still grow to `max_model_len`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._max_kv_concurrent = max_kv_concurrent(
            self.kv_cache_config.num_blocks,
            get_blocks_per_request(self.vllm_config, self.kv_cache_config),
        )

    def can_schedule(self, request):
        # First ask super(). Then: do so many run that they may need it all?
        # `return self._hold(HoldReason.KV_SATURATED)` notes the reason and says no.
        raise NotImplementedError
# %% solution
class MyAdmissionScheduler(PaddedScheduler):
    """Starts a request only if all that run can then still grow to `max_model_len`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._max_kv_concurrent = max_kv_concurrent(
            self.kv_cache_config.num_blocks,
            get_blocks_per_request(self.vllm_config, self.kv_cache_config),
        )

    def can_schedule(self, request):
        if not super().can_schedule(request):
            return False
        if len(self.running) >= self._max_kv_concurrent:
            return self._hold(HoldReason.KV_SATURATED)
        return True

# %% exercise: longest
# %% skeleton
MY_LONGEST = None  # the largest max_model_len, in tokens
# %% solution
MY_LONGEST = 4096  # the largest max_model_len, in tokens

# %% exercise: flaw
# %% skeleton
MY_LENGTHS = None  # the lengths of two prompts, in tokens
# %% solution
MY_LENGTHS = [120, 120]  # the lengths of two prompts, in tokens

# %% exercise: guard
# %% skeleton
class MyGuardedScheduler(Unguarded):
    """Has no bound; gives the decodes a step after each one that was lost to a refusal."""

    refused = False  # was the last step lost?

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        self.refused = self.was_refused(output)
        return output

    def was_refused(self, output):
        # Were decodes hidden (self.hidden_reqs), and was nothing scheduled all the same?
        raise NotImplementedError

    def can_schedule(self, request):
        raise NotImplementedError
# %% solution
class MyGuardedScheduler(Unguarded):
    """Has no bound; gives the decodes a step after each one that was lost to a refusal."""

    refused = False  # was the last step lost?

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        self.refused = self.was_refused(output)
        return output

    def was_refused(self, output):
        return bool(self.hidden_reqs) and not output.num_scheduled_tokens

    def can_schedule(self, request):
        if self.refused:
            return self._hold(HoldReason.DECODES_FIRST)
        return super().can_schedule(request)
