"""The watchdog tells a deadlock from a run that ends, and names its parts."""

from dataclasses import replace

import pytest

from neuron_sched_lab.engine.lab import Lab
from neuron_sched_lab.engine.watchdog import PATIENCE, find_stall, run_until_stalled
from neuron_sched_lab.scheduler import KVAdmissionScheduler, NeuronAsyncScheduler, PaddedScheduler

SETTINGS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "max_model_len": 128,
    "block_size": 16,
    "num_kv_blocks": 17,
    "enable_prefix_caching": False,
}


class Unguarded(PaddedScheduler):
    progress_guard = False


def make_lab(scheduler) -> Lab:
    """A Lab with five requests of 4 KV blocks each, in a cache of 16."""
    lab = Lab(scheduler, **SETTINGS)
    for _ in range(5):
        lab.add([5] * 60, max_tokens=20, ignore_eos=True)
    return lab


@pytest.mark.parametrize("scheduler", [PaddedScheduler, KVAdmissionScheduler, NeuronAsyncScheduler])
def test_a_run_that_ends_is_no_stall(scheduler):
    with make_lab(scheduler) as lab:
        assert run_until_stalled(lab) is None
        assert not lab.has_unfinished_requests


def test_the_deadlock_is_found_at_once_and_explained():
    with make_lab(Unguarded) as lab:
        stall = run_until_stalled(lab)
        assert len(lab.trace) == 4 + PATIENCE
        assert (stall.first_step, stall.num_steps) == (5, PATIENCE)
        assert (stall.head, stall.hidden) == ("r4", ("r0", "r1", "r2", "r3"))
        assert (stall.blocks_needed, stall.blocks_free) == (4, 0)
        assert "prefill r4 waits in front\n  -> running decodes hidden" in str(stall)
        # The steps before the last change are no part of it.
        changed = replace(lab.trace[-3], waiting=("r3",))
        lab.trace.records[-3] = changed
        assert find_stall(lab.trace) is None
