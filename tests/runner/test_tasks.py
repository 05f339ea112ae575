"""The tiny model answers its prompts through our worker, and a planted fault shows.

Each fault is one that a runner can have; the tasks named are those that facts about the model say
must suffer. All of them are fine without the fault.
"""

import numpy as np
import pytest

from neuron_sched_lab import Lab
from neuron_sched_lab.runner import inputs, model_runner
from neuron_sched_lab.tiny_model import tasks

LONG = [*tasks.verified(2, kinds=["recall"], min_tokens=1000, max_tokens=1900)]
LONG += tasks.verified(2, kinds=["echo"], min_tokens=1000, max_tokens=1900)
LONG += tasks.verified(2, kinds=["count"], min_tokens=1000, max_tokens=1900)


def answer(wanted, **settings):
    """Return which of the tasks were answered right."""
    with Lab(**{"max_num_seqs": 4, "max_num_batched_tokens": 128, **settings}) as lab:
        ids = [lab.add(task.prompt, max_tokens=task.max_tokens) for task in wanted]
        lab.run()
        return [task.check(lab.text[i]) for task, i in zip(wanted, ids, strict=True)]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_tasks_to_1900_tokens_and_copies_to_200(prefix_caching):
    wanted = LONG + tasks.verified(4, kinds=["copy"], min_tokens=100, max_tokens=200)
    wanted += tasks.verified(12, max_tokens=400)
    assert all(answer(wanted, enable_prefix_caching=prefix_caching))


def few(kind, low, high):
    """Four tasks in two chunks, the second of which has padding."""
    found = tasks.verified(kinds=[kind], min_tokens=low, max_tokens=high)
    return [task for task in found if task.num_tokens % 128][:4]


COPY = few("copy", 130, 200)
RECALL = few("recall", 130, 250)
ECHO = few("echo", 130, 250)
COUNT = few("count", 130, 250)


def pad_over_the_last_slots(padded):
    """Padding writes to the slots of the last real tokens instead of nowhere."""
    n = int(padded.num_tokens[0])
    slots = padded.slot_mapping.copy()
    padding = slots[n:]
    padding[:] = np.resize(slots[max(n - 8, 0) : n], len(padding))
    return padded._replace(slot_mapping=slots)


def pad_over_the_first_slots(padded):
    """Padding counts on from slot 0 of the request's first block."""
    n = int(padded.num_tokens[0])
    slots = padded.slot_mapping.copy()
    first = padded.block_table[0] * 32
    slots[n:] = first + np.arange(len(slots) - n) % 32
    return padded._replace(slot_mapping=slots)


def restart_at_0(padded):
    """A later chunk starts at position 0 again."""
    return padded._replace(positions=padded.positions - padded.prior_tokens)


def sample_the_last_row(padded):
    """The padded length is taken for the real one."""
    return padded._replace(num_tokens=np.array([len(padded.input_ids)], dtype=np.int32))


def one_too_far(padded):
    """Decode positions are off by one."""
    return padded._replace(positions=padded.positions + 1)


def foreign_block(padded):
    """The first block belongs to somebody else."""
    tables = padded.block_tables.copy()
    tables[:, 0] = tables[:, 1]
    return padded._replace(block_tables=tables)


FAULTS = [
    ("pad_prefill", pad_over_the_last_slots, {"copy": COPY, "recall": RECALL, "echo": ECHO}),
    ("pad_prefill", pad_over_the_first_slots, {"copy": COPY}),
    ("pad_prefill", restart_at_0, {"copy": COPY, "recall": RECALL, "echo": ECHO, "count": COUNT}),
    ("pad_prefill", sample_the_last_row, {"recall": RECALL, "count": COUNT}),
    ("pad_decode", one_too_far, {"recall": RECALL, "echo": ECHO, "count": COUNT}),
    ("pad_decode", foreign_block, {"copy": COPY}),
]


@pytest.mark.parametrize(
    ("function", "fault", "victims"), FAULTS, ids=[fault.__name__ for _, fault, _ in FAULTS]
)
def test_a_planted_fault_shows(function, fault, victims, monkeypatch):
    right = getattr(inputs, function)
    monkeypatch.setattr(
        model_runner, function, lambda *args, **kwargs: fault(right(*args, **kwargs))
    )
    wanted = [task for found in victims.values() for task in found]
    # No shared prefixes: a prompt that comes twice would be answered from the cache.
    right_by_task = dict(zip(wanted, answer(wanted, enable_prefix_caching=False), strict=True))
    for kind, found in victims.items():
        assert sum(right_by_task[task] for task in found) <= 1, kind


def test_the_victims_are_fine_without_a_fault():
    assert all(answer(COPY + RECALL + ECHO + COUNT))
