# ruff: noqa: F811
"""Exercises of 04_padding.ipynb: what the learner finds, and what solves it."""

from neuron_sched_lab.scheduler import SeparatedScheduler
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count
from neuron_sched_lab.scheduler.padding import get_scheduled_prefills


# %% exercise: padding
# %% skeleton
class MyPaddedScheduler(SeparatedScheduler):
    """Says how long the tensor of each scheduled request is."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_batched_tokens_buckets = list(self.neuron_config.num_batched_tokens_buckets)
        self.num_seqs_buckets = list(self.neuron_config.num_seqs_buckets)

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        prefills = get_scheduled_prefills(output, self.requests)
        self.apply_padding(output, prefills)
        return output

    def apply_padding(self, output, prefills):
        # `prefills`: the ids of the requests that read in this step.
        # Which field of `output` takes the lengths, and which one stays as it is?
        raise NotImplementedError  # step 6
# %% solution
class MyPaddedScheduler(SeparatedScheduler):
    """Says how long the tensor of each scheduled request is."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_batched_tokens_buckets = list(self.neuron_config.num_batched_tokens_buckets)
        self.num_seqs_buckets = list(self.neuron_config.num_seqs_buckets)

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        prefills = get_scheduled_prefills(output, self.requests)
        self.apply_padding(output, prefills)
        return output

    def apply_padding(self, output, prefills):
        padded = dict(output.num_scheduled_tokens)
        for req_id in prefills:
            padded[req_id] = get_bucket_for_count(padded[req_id], self.num_batched_tokens_buckets)
        output.num_scheduled_tokens_padded = padded

# %% exercise: counts
# %% skeleton
# A pair (actual, padded) for each prefill step, such as [(4000, 4096)].
MY_COUNTS = None
# %% solution
# A pair (actual, padded) for each prefill step, such as [(4000, 4096)].
MY_COUNTS = [(8192, 8192), (3808, 4096)]

# %% exercise: purity
# %% skeleton
class MyVerifyingScheduler(SeparatedScheduler):
    """Refuses a batch that is not pure, before anything is committed."""

    def _call_base_schedule(self):
        # self.waiting and self.running are what vLLM is about to see.
        raise NotImplementedError  # step 7, then step 4
# %% solution
class MyVerifyingScheduler(SeparatedScheduler):
    """Refuses a batch that is not pure, before anything is committed."""

    def _call_base_schedule(self):
        reading = sum(self._is_prefill_request(r) for r in self.running)
        prefills = len(self.waiting) + reading
        decodes = len(self.running) - reading
        if prefills > 1 or (prefills and decodes):
            raise RuntimeError(f"{prefills} prefills and {decodes} decodes in the same batch")
        return super()._call_base_schedule()

# %% exercise: find_prefills
# %% skeleton
class MyFindingScheduler(SeparatedScheduler):
    """Finds out itself which requests a step prefills."""

    total_padding_tokens = 0

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        self.num_batched_tokens_buckets = buckets = self.neuron_config.num_batched_tokens_buckets
        self.scheduled_prefills = self.find_prefills(output)
        padded = dict(output.num_scheduled_tokens)
        for req_id in self.scheduled_prefills:
            padded[req_id] = get_bucket_for_count(padded[req_id], buckets)
            self.total_padding_tokens += padded[req_id] - output.num_scheduled_tokens[req_id]
        output.num_scheduled_tokens_padded = padded
        return output

    def find_prefills(self, output):
        # Return a list of request ids.
        raise NotImplementedError
# %% solution
class MyFindingScheduler(SeparatedScheduler):
    """Finds out itself which requests a step prefills."""

    total_padding_tokens = 0

    def schedule(self, throttle_prefills=False):
        output = super().schedule(throttle_prefills)
        self.num_batched_tokens_buckets = buckets = self.neuron_config.num_batched_tokens_buckets
        self.scheduled_prefills = self.find_prefills(output)
        padded = dict(output.num_scheduled_tokens)
        for req_id in self.scheduled_prefills:
            padded[req_id] = get_bucket_for_count(padded[req_id], buckets)
            self.total_padding_tokens += padded[req_id] - output.num_scheduled_tokens[req_id]
        output.num_scheduled_tokens_padded = padded
        return output

    def find_prefills(self, output):
        found = [new.req_id for new in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            written = max(cached.num_output_tokens[i] - 1, 0)
            to_read = self.requests[req_id].num_prompt_tokens + written
            resumed = req_id in cached.resumed_req_ids
            if resumed or cached.num_computed_tokens[i] < to_read:
                found.append(req_id)
        return found
