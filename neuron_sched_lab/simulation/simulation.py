"""Simulation: the real scheduler classes and vLLM's real KV-cache manager, on a virtual clock.

    workload = Workload.read("AzureLLMInferenceTrace_conv.csv")
    cost_model = RooflineCostModel("llama-3.1-8b", tp_degree=8, max_model_len=16384)
    result = simulate(workload, NeuronScheduler, cost_model, max_num_seqs=32)
    print(result.metrics())
    result.trace.to_perfetto("trace.json")

A simulation predicts as well as its cost model does. What it does not have to predict is the
scheduling: that is done by the very code that a live engine runs; see `virtual_engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..settings.environment import prepare_environment

prepare_environment()

from vllm.config import SchedulerConfig  # noqa: E402

from ..scheduler import NeuronScheduler  # noqa: E402
from ..settings.arguments import (  # noqa: E402
    argument_names,
    check_bools,
    check_ints,
    check_names,
)
from ..trace.metrics import SLO, Metrics  # noqa: E402
from ..workloads.workload import Workload, check_workload  # noqa: E402
from .bare_scheduler import make_scheduler  # noqa: E402
from .cost_model import CostModel  # noqa: E402
from .virtual_engine import VirtualEngine  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from ..trace.run_log import RunLog
    from ..trace.trace import Trace

MAX_TOKENS_WITH_RECORDS = 200_000
"""Records are kept by default up to this many output tokens of a workload: each is part of one."""


@dataclass(frozen=True)
class SimulationResult:
    """What came of a simulation.

    Attributes:
        workload: its name.
        trace: the settings, the requests and, if they were kept, one StepRecord a step.
        log: times and counts of every step, kept in any case.
        scheduler: the scheduler object at the end.
        refused: requests that the engine or the scheduler would not take, with the reason.
        stalled: True if the scheduler scheduled nothing for many steps although requests were
            left: a deadlock.
        num_scheduled_steps: steps for which `schedule()` was called.
        why_not_fast_forwarded: why no decode steps were advanced in one go, or None.
    """

    workload: str
    trace: Trace
    log: RunLog
    scheduler: Scheduler = field(repr=False)
    refused: dict[str, str] = field(repr=False)
    stalled: bool
    num_scheduled_steps: int
    why_not_fast_forwarded: str | None

    def metrics(self, slo: SLO | None = None) -> Metrics:
        """Return the figures of the run, goodput under `slo`."""
        return Metrics.of(self.log, slo)


def simulate(
    workload: Workload,
    scheduler: type[Scheduler] = NeuronScheduler,
    cost_model: CostModel | None = None,
    *,
    max_num_seqs: int = 32,
    max_num_batched_tokens: int = 8192,
    max_model_len: int = 16384,
    block_size: int = 32,
    num_kv_blocks: int | None = None,
    neuron_config: Mapping[str, Any] | None = None,
    enable_prefix_caching: bool = False,
    policy: str = "fcfs",
    fast_forward: bool = True,
    keep_records: bool | None = None,
    max_steps: int | None = None,
    **scheduler_config: Any,
) -> SimulationResult:
    """Run a workload through a scheduler class, in simulated time.

    Args:
        workload: who arrives when.
        scheduler: a vLLM scheduler class, ours, vLLM's or your own.
        cost_model: how long steps take; by default Llama-3.1-8B on eight logical cores of a Trn2.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step; longer prompts are prefilled in chunks.
        max_model_len: longest sequence, in tokens.
        block_size: tokens in a KV block.
        num_kv_blocks: KV blocks, vLLM's null block included; by default enough for
            `max_num_seqs` requests of `max_model_len`.
        neuron_config: settings of the Neuron schedulers, see NeuronConfig.
        enable_prefix_caching: whether requests share the KV blocks of a common prefix.
        policy: "fcfs" or "priority".
        fast_forward: whether decode steps that are alike are advanced in one go; the result is
            the same, see `fast_forward`.
        keep_records: whether to keep a StepRecord of each step; by default for workloads of at
            most MAX_TOKENS_WITH_RECORDS output tokens.
        max_steps: stop after so many steps (a fast-forwarded run is not cut in the middle).
        scheduler_config: other fields of vLLM's SchedulerConfig.

    Raises:
        ValueError: a setting is wrong; it is named.
    """
    _check_own_settings(workload, cost_model, fast_forward, keep_records, max_steps)
    check_names(scheduler_config, _known_settings(), "simulate")
    scheduler_object = make_scheduler(
        scheduler,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=num_kv_blocks,
        block_size=block_size,
        policy=policy,
        enable_prefix_caching=enable_prefix_caching,
        neuron_config=neuron_config,
        **scheduler_config,
    )
    if keep_records is None:
        keep_records = sum(r.num_output_tokens for r in workload) <= MAX_TOKENS_WITH_RECORDS
    if cost_model is None:
        from .roofline import RooflineCostModel

        cost_model = RooflineCostModel("llama-3.1-8b", tp_degree=8, max_model_len=max_model_len)
    engine = VirtualEngine(
        workload,
        scheduler_object,
        cost_model,
        skip_ahead=fast_forward,
        keep_records=keep_records,
    )
    engine.run(max_steps)
    return SimulationResult(
        workload=workload.name,
        trace=engine.trace,
        log=engine.log,
        scheduler=engine.scheduler,
        refused=engine.refused,
        stalled=engine.stalled,
        num_scheduled_steps=engine.num_scheduled_steps,
        why_not_fast_forwarded=(
            engine.fast_forward.why_not if engine.fast_forward else "fast_forward=False"
        ),
    )


def _check_own_settings(
    workload: object,
    cost_model: object,
    fast_forward: object,
    keep_records: object,
    max_steps: object,
) -> None:
    """Check what the scheduler is not told; make_scheduler checks the rest."""
    check_workload(workload)
    if cost_model is not None and not isinstance(cost_model, CostModel):
        raise ValueError(
            f"cost_model: {cost_model!r} lacks prefill_seconds() or decode_seconds(); give "
            f"FunctionCostModel(prefill, decode) or another CostModel"
        )
    check_bools(fast_forward=fast_forward)
    if keep_records is not None:
        check_bools(keep_records=keep_records)
    if max_steps is not None:
        check_ints(at_least=0, max_steps=max_steps)


def _known_settings() -> list[str]:
    """Return simulate()'s arguments and the fields of vLLM's SchedulerConfig that it passes on."""
    vllm = [f.name for f in fields(SchedulerConfig) if f.init and f.name != "scheduler_cls"]
    return list(dict.fromkeys([*argument_names(simulate), *vllm]))
