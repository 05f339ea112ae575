"""Where graphs run: the CPU or a Trn2. Everything that needs hardware is in this file.

What is here for `neuron` was written from the documented interface of torch-neuronx 2.13 (Neuron
SDK 2.33) and has NOT been run on hardware: torch device "neuron", `torch.neuron.is_available()`,
`torch.neuron.synchronize()`, `torch.compile(backend="neuron", fullgraph=True, dynamic=False)`.
The tests run it against a stand-in, up to the call of the compiler.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm.auto import tqdm
from vllm.logger import init_logger

from ..kernels.dispatch import get_kernels, reference_as_graph_nodes
from ..kernels.interface import Kernels

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

logger = init_logger(f"vllm.{__name__}")  # below "vllm", whose handler and level it shares

PREFILL = "prefill"
DECODE = "decode"


@dataclass(frozen=True)
class Device:
    """A place to run graphs.

    Attributes:
        name: as in RunnerConfig: cpu, neuron or nki-sim.
        torch_device: torch's name for where tensors live.
        kernels: what the model calls there.
        backend: of torch.compile, or None to run eagerly.
    """

    name: str
    torch_device: str
    kernels: Kernels
    backend: str | None = None

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as a graph of fixed shapes; compilation happens at its first call."""
        if self.backend is None:
            return function
        return torch.compile(function, backend=self.backend, fullgraph=True, dynamic=False)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor from the host to the device."""
        return tensor.to(self.torch_device)

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self.torch_device == "neuron":
            torch.neuron.synchronize()


def resolve_device(name: str, *, compile_on_cpu: bool = False) -> Device:
    """Return the device of that name.

    Args:
        name: "cpu", "neuron", "nki-sim" or "auto" (neuron where one is present, else cpu).
        compile_on_cpu: compile with inductor instead of running eagerly.

    Raises:
        RuntimeError: the device is not there.
        NotImplementedError: there are no kernels for it.
    """
    if name == "auto":
        name = "neuron" if find_neuron() is None else "cpu"
    if name == "neuron":
        if (reason := find_neuron()) is not None:
            raise RuntimeError(
                f'device: "neuron" is not usable here: {reason}; use device="cpu", or run on a '
                f"Trn2 instance with the Neuron SDK"
            )
        return Device(name, "neuron", get_kernels(name), backend="neuron")
    if name == "nki-sim":
        return Device(name, "cpu", get_kernels(name))
    _keep_freed_memory()
    _load_vllm_kernels()
    if compile_on_cpu:
        return Device(name, "cpu", reference_as_graph_nodes(), backend="inductor")
    return Device(name, "cpu", get_kernels(name))


def find_neuron() -> str | None:
    """Return None where a Neuron device can be used, else the reason why not.

    Not run on hardware.
    """
    if importlib.util.find_spec("torch_neuronx") is None:
        return "torch_neuronx is not installed"
    try:
        importlib.import_module("torch_neuronx")  # registers torch.neuron
        if not torch.neuron.is_available():
            return "torch.neuron.is_available() is False"
    except (ImportError, RuntimeError, AttributeError) as error:
        return f"torch_neuronx does not start: {error}"
    return None


def _load_vllm_kernels() -> None:
    """Load the kernels of vLLM's builds for the CPU; references use some of them."""
    with suppress(ImportError):
        importlib.import_module("vllm._custom_ops")


def _keep_freed_memory() -> None:
    """Make glibc keep what torch frees, for the next step to use again.

    By default large buffers go back to the kernel when they are freed, and come back page by
    page: prefill attention was measured to take four times as long.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_trim_threshold, 256 * 2**20)
        mallopt(m_mmap_threshold, 32 * 2**20)


class GraphKey(NamedTuple):
    """One rung of a ladder: its phase, and its bucket in tokens (prefill) or sequences (decode)."""

    phase: str
    bucket: int


class GraphRecord(NamedTuple):
    """One line of the warm-up log.

    Attributes:
        key: phase and bucket.
        shapes: of the inputs, by name.
        seconds: duration of the first call: compilation, where the device compiles, and one run.
    """

    key: GraphKey
    shapes: dict[str, tuple[int, ...]]
    seconds: float


class GraphRegistry:
    """The graphs of one engine: one for each bucket, all made at warm-up, none after it.

    Attributes:
        log: one GraphRecord for each graph, in the order of warm-up.
        num_calls: how often each graph has run since warm-up.
    """

    def __init__(self, device: Device) -> None:
        self.log: list[GraphRecord] = []
        self.num_calls: dict[GraphKey, int] = {}
        self._device = device
        self._graphs: dict[GraphKey, Callable[..., Any]] = {}
        self._shapes: dict[GraphKey, dict[str, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self.log)

    def release(self) -> None:
        """Let go of the graphs; the log and the counters stay."""
        self._graphs.clear()

    def warm_up(
        self,
        ladder: Sequence[tuple[GraphKey, Callable[..., Any], NamedTuple, Any]],
        *,
        show_progress: bool,
    ) -> float:
        """Make and run every graph once.

        Args:
            ladder: for each graph its key, the function, example inputs (torch tensors on the
                device) and what the function takes last: the caches.
            show_progress: draw a progress bar.

        Returns:
            Seconds in all.
        """
        with _allow_graphs(len(ladder)):
            for key, function, inputs, caches in tqdm(
                ladder, desc="Warming up graphs", disable=not show_progress
            ):
                start = perf_counter()
                graph = self._device.compile(function)
                graph(*inputs, caches)
                self._device.synchronize()
                seconds = perf_counter() - start
                self._graphs[key] = graph
                self._shapes[key] = _shapes_of(inputs)
                self.num_calls[key] = 0
                self.log.append(GraphRecord(key, self._shapes[key], seconds))
                logger.info("graph %s %d: %.3f s", key.phase, key.bucket, seconds)
        return sum(record.seconds for record in self.log)

    def run(self, key: GraphKey, inputs: NamedTuple, caches: Any) -> Any:
        """Run the graph of a bucket.

        Raises:
            RuntimeError: there is no graph for this bucket, or the inputs have other shapes.
        """
        if key not in self._graphs:
            buckets = [k.bucket for k in self._graphs if k.phase == key.phase]
            raise RuntimeError(
                f"{key.phase} shape {key.bucket} has no compiled graph; the ladder has {buckets}; "
                f"pad to one of them, or add {key.bucket} to the ladder in neuron_config"
            )
        if (shapes := _shapes_of(inputs)) != self._shapes[key]:
            raise RuntimeError(
                f"{key.phase} bucket {key.bucket}: inputs have shapes {shapes}; its graph was "
                f"compiled for {self._shapes[key]}"
            )
        self.num_calls[key] += 1
        with self._no_new_graph():
            return self._graphs[key](*inputs, caches)

    def _no_new_graph(self) -> AbstractContextManager[Any]:
        """Make torch raise where it would compile: after warm-up that is always a fault."""
        if self._device.backend is None:
            return nullcontext()
        return torch.compiler.set_stance("fail_on_recompile")


def _shapes_of(inputs: NamedTuple) -> dict[str, tuple[int, ...]]:
    given = inputs._asdict().items()
    return {name: tuple(tensor.shape) for name, tensor in given if tensor is not None}


@contextmanager
def _allow_graphs(num_graphs: int) -> Iterator[None]:
    """Lift torch's limit of graphs per function, 8 by default, to the length of the ladder."""
    limit = max(torch._dynamo.config.recompile_limit, num_graphs + 1)
    with torch._dynamo.config.patch(recompile_limit=limit, accumulated_recompile_limit=limit * 64):
        yield
