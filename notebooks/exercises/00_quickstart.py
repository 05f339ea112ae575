"""Exercises of 00_quickstart.ipynb: what the learner finds, and what solves it."""

P, D = "ACTIVE_PREFILL", "ACTIVE_DECODE"

# %% exercise: predict_states
# %% skeleton
P, D = "ACTIVE_PREFILL", "ACTIVE_DECODE"

PREDICTION = [P]  # seven states, one for each step
# %% solution
P, D = "ACTIVE_PREFILL", "ACTIVE_DECODE"

PREDICTION = [P, P, P, P, D, P, D]
