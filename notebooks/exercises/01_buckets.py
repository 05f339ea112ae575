# ruff: noqa: F811
"""Exercises of 01_buckets.ipynb: what the learner finds, and what solves it."""

# %% exercise: lookup
# %% skeleton
def my_get_bucket_for_count(count, buckets):
    """Return the smallest of the ascending `buckets` that holds `count`.

    Raises ValueError if count is below 1 or does not fit the last bucket.
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_get_bucket_for_count(count, buckets):
    """Return the smallest of the ascending `buckets` that holds `count`.

    Raises ValueError if count is below 1 or does not fit the last bucket.
    """
    if count < 1:
        raise ValueError(f"count: {count} must be at least 1")
    for bucket in buckets:
        if bucket >= count:
            return bucket
    raise ValueError(f"count: {count} does not fit the largest bucket {buckets[-1]}")

# %% exercise: ladder
# %% skeleton
def my_default_ladder(max_tokens):
    """Return powers of two from 128 up that are below `max_tokens`, and then `max_tokens`."""
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_default_ladder(max_tokens):
    """Return powers of two from 128 up that are below `max_tokens`, and then `max_tokens`."""
    ladder = []
    bucket = 128
    while bucket < max_tokens:
        ladder.append(bucket)
        bucket *= 2
    return [*ladder, max_tokens]

# %% exercise: decode_rows
# %% skeleton
# The rows of the tensor for a batch of 1, 2, 3, 5, 6 and 8 decodes, in this order.
MY_ROWS = None
# %% solution
# The rows of the tensor for a batch of 1, 2, 3, 5, 6 and 8 decodes, in this order.
MY_ROWS = [1, 2, 4, 6, 6, 8]

# %% exercise: five_buckets
# %% skeleton
MY_FIVE = None  # five buckets, in tokens, in ascending order; the last one is 2048
# %% solution
MY_FIVE = [110, 260, 700, 1100, 2048]  # five buckets, in tokens, in ascending order

# %% exercise: bounded_waste
# %% skeleton
def my_bounded_ladder(first, last, waste):
    """Return the shortest ladder from `first` to `last` that bounds the waste.

    In the bucket of any count from `first` to `last`, at most the share `waste` is padding.
    """
    raise NotImplementedError  # your code instead of this line
# %% solution
def my_bounded_ladder(first, last, waste):
    """Return the shortest ladder from `first` to `last` that bounds the waste.

    In the bucket of any count from `first` to `last`, at most the share `waste` is padding.
    """
    ladder = [first]
    while ladder[-1] < last:
        # The count that wastes most in the next bucket is the first one beyond this bucket.
        ladder.append(min(last, int((ladder[-1] + 1) / (1 - waste))))
    return ladder
