"""Tests of neuron_sched_lab.scheduler: no engine and no model, only the scheduler classes."""
