"""Registration with torch-neuronx, against a stand-in, up to the last call: the kernel itself."""

import inspect
import subprocess
import sys
import types

import pytest
import torch

from neuron_sched_lab import nki_emulator as emulator
from neuron_sched_lab.kernels import nki_kernels, registration
from neuron_sched_lab.kernels.check import CASES, check_kernels
from neuron_sched_lab.kernels.dispatch import get_kernels
from tests.kernels import cases


class StandIn(types.ModuleType):
    """What torch_neuronx documents of nki_op and wrap_nki; kernels run under the emulator."""

    def __init__(self):
        super().__init__("torch_neuronx")
        self.operators = {}
        self.launches = []

    def nki_op(self, name, mutates_args):
        def register(function):
            # As torch does it: hints are mandatory, mutated arguments must be tensors of it.
            schema = torch.library.infer_schema(function, mutates_args=mutates_args)
            self.operators[name] = schema
            mutated = [arg for arg in mutates_args if arg in inspect.signature(function).parameters]
            assert set(mutated) == set(mutates_args)

            def operator(*args):
                before = [a._version for a in args if isinstance(a, torch.Tensor)]
                result = function(*args)
                assert len(before) == len([a for a in args if isinstance(a, torch.Tensor)])
                assert not any(result is arg for arg in args)  # torch forbids it
                return result

            return operator

        return register

    def wrap_nki(self, kernel):
        stand_in = self

        class Wrapped:
            def __getitem__(self, grid):
                def launch(*args):
                    stand_in.launches.append((kernel.__name__, grid))
                    return emulator.simulate(kernel[grid])(*args)

                return launch

        return Wrapped()


@pytest.fixture
def torch_neuronx(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "torch_neuronx", module)
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    registration.register.cache_clear()
    yield module
    registration.register.cache_clear()


pytestmark = pytest.mark.skipif(nki_kernels.HAS_NKI, reason="the stand-in runs the emulator")


def test_operators_are_registered_once_with_their_mutated_arguments(torch_neuronx):
    assert get_kernels("neuron") is get_kernels("neuron")
    schemas = torch_neuronx.operators
    assert sorted(schemas) == [
        "neuron_sched_lab::nki_kv_cache_update",
        "neuron_sched_lab::nki_paged_decode_attention",
        "neuron_sched_lab::nki_segmented_attention",
    ]
    update = schemas["neuron_sched_lab::nki_kv_cache_update"]
    assert "Tensor(a2!) k_cache, Tensor(a3!) v_cache" in update
    assert update.endswith("-> ()")
    for name in ("nki_segmented_attention", "nki_paged_decode_attention"):
        assert "!" not in schemas[f"neuron_sched_lab::{name}"]
        assert schemas[f"neuron_sched_lab::{name}"].endswith("-> Tensor")


@pytest.mark.parametrize(("setting", "grid"), [(None, 2), ("1", 1), ("2", 2)])
def test_kernels_are_launched_on_the_cores_of_a_logical_core(
    torch_neuronx, monkeypatch, setting, grid
):
    if setting:
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", setting)
    results = check_kernels(get_kernels("neuron"), put=lambda tensor: tensor)
    assert [result.detail for result in results if not result.passed] == []
    assert len(results) == 3 * len(CASES)
    assert {launched for _, launched in torch_neuronx.launches} == {grid}
    assert {name for name, _ in torch_neuronx.launches} == {
        "segmented_attention_kernel",
        "paged_decode_attention_kernel",
        "kv_cache_update_kernel",
    }


def test_caches_are_passed_whole_and_changed_in_place(torch_neuronx):
    cases.check_update(cases.update_case(6, torch.float32), get_kernels("neuron").kv_cache_update)


def test_the_kernel_returns_the_caches_that_it_writes():
    k, v, k_cache, v_cache, slots = cases.update_case(6, torch.float32).args
    outputs = emulator.simulate(nki_kernels.kv_cache_update_kernel)(k, v, k_cache, v_cache, slots)
    assert outputs[0] is k_cache and outputs[1] is v_cache


def test_a_grid_that_does_not_exist_is_named(torch_neuronx, monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "4")
    with pytest.raises(ValueError, match="NEURON_LOGICAL_NC_CONFIG: '4' must be 1 or 2"):
        get_kernels("neuron")


def test_a_cpu_machine_imports_nothing_of_neuron():
    code = (
        "import sys; from neuron_sched_lab.kernels.dispatch import get_kernels; "
        "get_kernels('cpu'); print([m for m in sys.modules if m.startswith(('nki', "
        "'torch_neuronx')) or m.startswith('neuron_sched_lab.kernels.') "
        "and not m.startswith(('neuron_sched_lab.kernels.dispatch', "
        "'neuron_sched_lab.kernels.interface', 'neuron_sched_lab.kernels.reference'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
