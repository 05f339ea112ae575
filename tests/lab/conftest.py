"""Sets vLLM's variables before any test module of this room imports it."""

from neuron_sched_lab.lab.environment import prepare_environment

prepare_environment()
