"""What the scheduler and the worker count for Prometheus, in the registry that vLLM uses.

The scheduler counts only in an engine that logs stats (`vllm serve`, or
`LLM(disable_log_stats=False)`); the worker always does. The names begin with `vllm_neuron:`,
because vLLM's stat logger removes whatever begins with `vllm:` from the registry when it starts.

`vllm serve` runs the engine in another process than /metrics. Metrics of several processes meet in
the files of Prometheus's multiprocess mode: set PROMETHEUS_MULTIPROC_DIR to an empty directory
before the start. `python -m neuron_sched_lab.vllm_command serve` does so by itself, and so does
vLLM with more than one API server.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from .holdback import HoldReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from enum import Enum

    from prometheus_client import CollectorRegistry
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

    from .padding import PaddedScheduler

PREFIX = "vllm_neuron:"
LABELS = ["model_name", "engine"]
"""As in vLLM's own metrics: the served name and the data-parallel rank."""


class SchedulerWithState(Protocol):
    """What a scheduler must have for metrics to be made of it."""

    vllm_config: VllmConfig
    num_batched_tokens_buckets: list[int]
    num_seqs_buckets: list[int]

    @property
    def state(self) -> Enum:
        """One member of the states that the scheduler can be in."""


class NeuronMetrics:
    """The metrics of one scheduler.

    In one process a second scheduler's metrics replace the first's, as vLLM's own do: the bounds
    of the histograms are the ladders of one scheduler.
    """

    def __init__(
        self,
        labels: Sequence[str],
        num_batched_tokens_buckets: Sequence[int],
        num_seqs_buckets: Sequence[int],
        states: Iterable[str],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        _unregister(registry)
        self._states = tuple(states)

        def make(cls: type, name: str, text: str, *extra: str, **options: Any) -> Any:
            metric = cls(PREFIX + name, text, [*LABELS, *extra], registry=registry, **options)
            # The labels of the engine are filled in here, `extra` ones with each value.
            return metric if extra else metric.labels(*labels)

        chunks = make(
            Histogram,
            "prefill_chunk_tokens",
            "Tokens of a prefill chunk before padding; le is a prefill bucket.",
            buckets=num_batched_tokens_buckets,
        )
        padding = make(
            Counter,
            "prefill_padding_tokens",
            "Tokens that pad prefill chunks up to their bucket.",
            "bucket",
        )
        self._observe_chunk = chunks.observe
        self._padding = {b: padding.labels(*labels, b) for b in num_batched_tokens_buckets}
        self._observe_decode = make(
            Histogram,
            "decode_seqs",
            "Sequences of a decode step before padding; le is a decode bucket.",
            buckets=num_seqs_buckets,
        ).observe
        state = make(
            Gauge,
            "scheduler_state",
            "1 for the state that the scheduler is in.",
            "state",
            multiprocess_mode="mostrecent",
        )
        transitions = make(
            Counter, "scheduler_transitions", "Transitions, by the state entered.", "state"
        )
        self._state = {s: state.labels(*labels, s) for s in self._states}
        self._transitions = {s: transitions.labels(*labels, s) for s in self._states}
        held_back = make(
            Counter,
            "held_back_steps",
            "Steps in which the first waiting request was held back.",
            "reason",
        )
        self._held_back = {r: held_back.labels(*labels, r.value) for r in HoldReason}
        self._deferred_for_kv = make(
            Counter, "deferred_for_kv", "Requests that the KV bound made wait."
        )
        self._last_deferred: str | None = None
        for name in self._states:
            self._state[name].set(name == self._states[0])

    @classmethod
    def from_scheduler(cls, scheduler: SchedulerWithState) -> NeuronMetrics:
        """Make the metrics of `scheduler`, in its first state."""
        return cls(
            get_labels(scheduler.vllm_config),
            scheduler.num_batched_tokens_buckets,
            scheduler.num_seqs_buckets,
            [state.value for state in type(scheduler.state)],
        )

    def record(self, scheduler: PaddedScheduler, output: SchedulerOutput) -> None:
        """Count one step."""
        if (reason := scheduler.hold_reason) is not None:
            self._held_back[reason].inc()
            if reason is HoldReason.KV_SATURATED:
                self._count_deferred(scheduler)
        if scheduler.scheduled_prefills:
            for req_id in scheduler.scheduled_prefills:
                num_tokens = output.num_scheduled_tokens[req_id]
                bucket = output.num_scheduled_tokens_padded[req_id]
                self._observe_chunk(num_tokens)
                self._padding[bucket].inc(bucket - num_tokens)
        elif num_decodes := len(output.num_scheduled_tokens):
            self._observe_decode(num_decodes)

    def _count_deferred(self, scheduler: PaddedScheduler) -> None:
        """Count a request once, however many steps it stands at the head of the queue."""
        assert scheduler.held_back is not None
        if (request_id := scheduler.held_back.request_id) != self._last_deferred:
            self._last_deferred = request_id
            self._deferred_for_kv.inc()

    def enter(self, state: str) -> None:
        """Count a transition."""
        for name in self._states:
            self._state[name].set(name == state)
        self._transitions[state].inc()


@cache
def _graph_compiles() -> Histogram:
    return Histogram(
        PREFIX + "graph_compile_seconds",
        "Seconds that a graph took to compile and run for the first time; _count is the number.",
        [*LABELS, "phase"],
        buckets=(0.01, 0.1, 1, 10, 60, 300, 1800),
    )


def count_graph_compiles(vllm_config: VllmConfig, log: Iterable[Any]) -> None:
    """Count the graphs of a worker's warm-up; `log` is of the runner's GraphRecord."""
    labels = get_labels(vllm_config)
    for record in log:
        _graph_compiles().labels(*labels, record.key.phase).observe(record.seconds)


def get_labels(vllm_config: VllmConfig) -> list[str]:
    """Return the values of LABELS."""
    model_name = vllm_config.model_config.served_model_name
    return [str(model_name), str(vllm_config.parallel_config.data_parallel_index)]


def _unregister(registry: CollectorRegistry) -> None:
    """Remove the metrics of an earlier scheduler; the worker's stay."""
    for collector in list(registry._collector_to_names):
        name = getattr(collector, "_name", "")
        if name.startswith(PREFIX) and name != PREFIX + "graph_compile_seconds":
            registry.unregister(collector)
