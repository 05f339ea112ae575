"""Schedulers of a user that do not work, as the text of a module of theirs."""

CLASSES = """
from neuron_sched_lab import NeuronScheduler

class Never(NeuronScheduler):
    def can_schedule(self, request):  # noqa: RET503
        return False

class Crash(NeuronScheduler):
    def schedule(self, *args):
        raise KeyError("boom")

class Init(NeuronScheduler):
    def __init__(self):
        pass
"""
