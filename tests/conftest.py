"""Sets vLLM's variables before any test module imports it."""

from neuron_sched_lab.settings.environment import prepare_environment

prepare_environment()
