# ruff: noqa: F811
"""Exercises of 09_experiments.ipynb: what the learner finds, and what solves it."""

from neuron_sched_lab import NeuronScheduler
from neuron_sched_lab.scheduler.ladders import optimal_buckets

first_half: list[int] = []


# %% exercise: policy
# %% skeleton
class MyPolicy(NeuronScheduler):
    """Short prompts first, but whoever has waited for PATIENCE steps goes before them."""

    PATIENCE = 200

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_steps = 0
        self.waits_since = {}  # request id -> the step in which it was first seen to wait

    def schedule(self, throttle_prefills=False):
        self.num_steps += 1
        for request in self.waiting:
            self.waits_since.setdefault(request.request_id, self.num_steps)
        queue = sorted(self.waiting, key=self.rank)
        self.waiting.clear()
        self.waiting.extend(queue)
        return super().schedule(throttle_prefills)

    def rank(self, request):
        # Return a key; who has the smallest is next. Tuples are compared item by item.
        raise NotImplementedError
# %% solution
class MyPolicy(NeuronScheduler):
    """Short prompts first, but whoever has waited for PATIENCE steps goes before them."""

    PATIENCE = 200

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_steps = 0
        self.waits_since = {}  # request id -> the step in which it was first seen to wait

    def schedule(self, throttle_prefills=False):
        self.num_steps += 1
        for request in self.waiting:
            self.waits_since.setdefault(request.request_id, self.num_steps)
        queue = sorted(self.waiting, key=self.rank)
        self.waiting.clear()
        self.waiting.extend(queue)
        return super().schedule(throttle_prefills)

    def rank(self, request):
        since = self.waits_since[request.request_id]
        if self.num_steps - since >= self.PATIENCE:
            return (0, since)
        return (1, request.num_prompt_tokens)

# %% exercise: smallest_cache
# %% skeleton
MY_SMALLEST = None  # {"worst_case": KV tokens, "reservation": ..., "banker": ...}
# %% solution
MY_SMALLEST = {"worst_case": 65536, "reservation": 16384, "banker": 16384}

# %% exercise: four_buckets
# %% skeleton
MY_BUCKETS = None  # at most four, the last one 2048
# %% solution
MY_BUCKETS = optimal_buckets(first_half, 4, max_num_batched_tokens=2048, granule=16)

# %% exercise: sandbox
# %% skeleton
MY_SCHEDULER = NeuronScheduler  # or a class of your own
MY_CONFIG = None  # a dict of Neuron settings, such as {"max_consecutive_prefills": 4}
# %% solution
class AgedShortestFirst(NeuronScheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_steps, self.since = 0, {}

    def schedule(self, throttle_prefills=False):
        self.num_steps += 1
        for request in self.waiting:
            self.since.setdefault(request.request_id, self.num_steps)
        queue = sorted(self.waiting, key=self.rank)
        self.waiting.clear()
        self.waiting.extend(queue)
        return super().schedule(throttle_prefills)

    def rank(self, request):
        since = self.since[request.request_id]
        waited_long = self.num_steps - since >= 200
        return (0, since) if waited_long else (1, request.num_prompt_tokens)


MY_SCHEDULER = AgedShortestFirst
MY_CONFIG = {
    "kv_admission": "banker",
    "max_consecutive_prefills": 1,
    "num_batched_tokens_buckets": [304, 512, 864, 1280, 2048],
}
