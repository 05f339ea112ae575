"""Scheduler classes by name."""

from __future__ import annotations

from importlib import import_module

from .options import suggest

SCHEDULERS = (
    "NeuronScheduler",
    "NeuronAsyncScheduler",
    "KVAdmissionScheduler",
    "PaddedScheduler",
    "SeparatedScheduler",
    "HoldbackScheduler",
)


def load_scheduler(name: str) -> type:
    """Return the scheduler class called `name`: one of ours, or `module.Class`.

    Raises:
        ValueError: there is no such class, or it is no vLLM scheduler.
    """
    from ..settings.environment import prepare_environment

    prepare_environment()
    from vllm.v1.core.sched.interface import SchedulerInterface

    module_name, _, class_name = name.rpartition(".")
    try:
        module = import_module(module_name or "neuron_sched_lab")
    except ImportError as error:
        raise ValueError(
            f"scheduler: {name!r}: module {module_name!r} does not import ({error}); is its folder "
            f"in PYTHONPATH?"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ValueError(
            f"scheduler: {name!r}: module {module_name!r} does not import "
            f"({type(error).__name__}: {error}); mend it"
        ) from error
    cls = getattr(module, class_name, None)
    if not (isinstance(cls, type) and issubclass(cls, SchedulerInterface)):
        raise ValueError(
            f"scheduler: {name!r} is no vLLM scheduler class; give module.Class of your own, or "
            f"one of ours: {suggest(class_name, SCHEDULERS)}"
        )
    return cls
