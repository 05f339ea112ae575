"""The scheduler classes of the lessons, each in a module of its own, and the rules they wire up."""

from .admission import KVAdmissionScheduler
from .config import NeuronConfig
from .holdback import HoldbackScheduler, HoldReason
from .neuron import NeuronAsyncScheduler, NeuronScheduler, SchedulerState, Transition
from .padding import PaddedScheduler
from .separation import SeparatedScheduler

__all__ = [
    "HoldReason",
    "HoldbackScheduler",
    "KVAdmissionScheduler",
    "NeuronAsyncScheduler",
    "NeuronConfig",
    "NeuronScheduler",
    "PaddedScheduler",
    "SchedulerState",
    "SeparatedScheduler",
    "Transition",
]
