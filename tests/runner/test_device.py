"""Devices: the registry of graphs, and the Neuron path against a stand-in.

No Trn2 here. The stand-in gives torch what torch_neuronx would: the module, `torch.neuron`, and a
compiler backend named "neuron". What runs for real is everything up to the backend's call: the
tracing of a whole graph for each bucket, with fixed shapes.
"""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._dynamo import register_backend
from torch._dynamo.backends import registry

from neuron_sched_lab import Lab
from neuron_sched_lab.kernels.dispatch import reference_as_graph_nodes
from neuron_sched_lab.runner import device as device_module
from neuron_sched_lab.runner.device import (
    GraphKey,
    GraphRegistry,
    find_neuron,
    resolve_device,
)
from neuron_sched_lab.runner.inputs import PrefillInputs
from tests.runner.running import make_prompts, run_in, run_lab, runner_of


def inputs(bucket):
    def zeros(n):
        return torch.zeros(n, dtype=torch.int32)

    return PrefillInputs(*(zeros(n) for n in (bucket, bucket, bucket, 4, 1, 1)))


@pytest.fixture
def registry_of_two():
    graphs = GraphRegistry(resolve_device("cpu"))

    def count(*args):
        return sum(len(arg) for arg in args if arg is not None)

    ladder = [(GraphKey("prefill", n), count, inputs(n), None) for n in (8, 16)]
    assert graphs.warm_up(ladder, show_progress=False) > 0
    return graphs


def test_the_registry_runs_what_it_has_and_counts(registry_of_two):
    graphs = registry_of_two
    assert len(graphs) == 2
    assert graphs.run(GraphKey("prefill", 8), inputs(8), None) == 3 * 8 + 6
    graphs.run(GraphKey("prefill", 8), inputs(8), None)
    assert graphs.num_calls == {("prefill", 8): 2, ("prefill", 16): 0}
    assert graphs.log[1].shapes["input_ids"] == (16,)
    assert graphs.log[1].seconds > 0
    graphs.release()
    assert len(graphs) == len(graphs.num_calls) == 2  # what a widget shows stays


@pytest.mark.parametrize(
    ("key", "bucket", "message"),
    [
        (GraphKey("prefill", 12), 12, r"prefill shape 12 has no compiled graph; .* \[8, 16\]"),
        (GraphKey("decode", 8), 8, r"decode shape 8 has no compiled graph; the ladder has \[\]"),
        (GraphKey("prefill", 8), 16, r"bucket 8: inputs have shapes .*16.*compiled for"),
    ],
)
def test_other_shapes_are_errors(registry_of_two, key, bucket, message):
    with pytest.raises(RuntimeError, match=message):
        registry_of_two.run(key, inputs(bucket), None)


def test_neuron_is_not_here(monkeypatch):
    monkeypatch.setattr(device_module.importlib.util, "find_spec", lambda name: None)
    assert find_neuron() == "torch_neuronx is not installed"
    assert resolve_device("auto").name == "cpu"
    with pytest.raises(RuntimeError, match='"neuron" is not usable here: torch_neuronx is not'):
        resolve_device("neuron")


@pytest.fixture
def stand_in(monkeypatch):
    """A torch_neuronx whose compiler counts its calls and runs the graph as it is."""
    compiled, synchronized = [], []

    def compile_graph(graph_module, example_inputs):
        compiled.append([tuple(x.shape) for x in example_inputs if isinstance(x, torch.Tensor)])
        return graph_module.forward

    register_backend(compile_graph, name="neuron")
    module = ModuleType("torch_neuronx")
    module.__spec__ = SimpleNamespace(name="torch_neuronx")
    monkeypatch.setitem(sys.modules, "torch_neuronx", module)
    neuron = SimpleNamespace(
        is_available=lambda: True, synchronize=lambda: synchronized.append(True)
    )
    monkeypatch.setattr(torch, "neuron", neuron, raising=False)
    # The kernels' own registration has its own tests.
    monkeypatch.setattr(device_module, "get_kernels", lambda name: reference_as_graph_nodes())
    yield SimpleNamespace(compiled=compiled, synchronized=synchronized, neuron=neuron)
    registry._COMPILER_FNS.pop("neuron")
    registry._BACKENDS.pop("neuron", None)
    torch._dynamo.reset()


def test_a_found_device_is_taken(stand_in):
    assert find_neuron() is None
    for name in ("auto", "neuron"):
        found = resolve_device(name)
        assert (found.name, found.torch_device, found.backend) == ("neuron", "neuron", "neuron")
    found.synchronize()
    assert stand_in.synchronized == [True]


@pytest.mark.parametrize("available", [False, None])
def test_a_device_that_does_not_answer_is_not_taken(stand_in, monkeypatch, available):
    if available is None:
        monkeypatch.delattr(torch, "neuron")
    else:
        monkeypatch.setattr(stand_in.neuron, "is_available", lambda: False)
    assert "torch" in find_neuron()
    assert resolve_device("auto").name == "cpu"


def test_compiled_graphs_one_for_each_bucket_and_none_later(stand_in, monkeypatch):
    """The neuron device, but for where tensors live: torch has no device of that name here."""
    monkeypatch.setattr(
        "neuron_sched_lab.runner.worker.resolve_device",
        lambda name, **settings: replace(resolve_device(name, **settings), torch_device="cpu"),
    )
    prompts = [prompt[:330] for prompt in make_prompts(10, seed=3)]
    buckets = list(range(40, 361, 40))  # more than torch allows a function by default
    settings = {
        "max_num_batched_tokens": 360,
        "max_num_seqs": 3,
        "neuron_config": {"num_batched_tokens_buckets": buckets},
    }
    with Lab(device="neuron", **settings) as lab:
        assert len(runner_of(lab).graphs) == len(stand_in.compiled) == len(buckets) + 3
        tokens = run_in(lab, prompts)
        assert len(stand_in.compiled) == len(buckets) + 3
    assert tokens == run_lab(prompts, device="cpu", **settings)
