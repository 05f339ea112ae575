"""The checks that an owner of a Trn2 runs: they pass here under the emulator, and they can fail."""

import dataclasses

import pytest
import torch

from neuron_sched_lab.kernels.check import CASES, check_device, check_kernels, check_simulate
from neuron_sched_lab.kernels.dispatch import REFERENCE, get_kernels


def test_every_kernel_passes_every_case():
    results = check_simulate()
    assert len(results) == 3 * len(CASES)
    assert [result for result in results if not result.passed] == []


def off_by_a_little(kernel):
    return lambda *args: kernel(*args) * 1.05


def nan(kernel):
    return lambda *args: torch.full_like(kernel(*args), float("nan"))


def forgets_to_write(*_):
    pass


def crashes(*_):
    raise RuntimeError("no such\nengine")


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("segmented_attention", off_by_a_little(REFERENCE.segmented_attention)),
        ("paged_decode_attention", off_by_a_little(REFERENCE.paged_decode_attention)),
        ("paged_decode_attention", nan(REFERENCE.paged_decode_attention)),
        ("kv_cache_update", forgets_to_write),
        ("segmented_attention", crashes),
    ],
)
def test_a_broken_kernel_fails_every_case(name, broken):
    kernels = dataclasses.replace(get_kernels("cpu"), **{name: broken})
    results = check_kernels(kernels, put=lambda tensor: tensor)
    failed = {result.name.split(":")[0] for result in results if not result.passed}
    assert failed == {name}
    assert sum(not result.passed for result in results) == len(CASES)


def test_a_crash_is_reported_in_one_line():
    kernels = dataclasses.replace(get_kernels("cpu"), kv_cache_update=crashes)
    details = {r.detail for r in check_kernels(kernels, put=lambda t: t) if not r.passed}
    assert details == {"RuntimeError: no such engine"}


@pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("torch_neuronx") is not None, reason="a Trn2"
)
def test_the_device_is_not_checked_where_there_is_none():
    with pytest.raises(ImportError, match="torch_neuronx"):
        check_device()
