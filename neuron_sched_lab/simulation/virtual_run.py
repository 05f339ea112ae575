"""VirtualRun: the state of a simulation: its clock, its log, the requests yet to arrive.

Whoever makes a step, one by one or many at once, works on it; see `virtual_engine` and
`fast_forward`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ..settings.environment import prepare_environment

prepare_environment()

from ..engine.recorder import get_trace_config  # noqa: E402
from ..scheduler import compat  # noqa: E402
from ..scheduler.admission import NUM_NULL_BLOCKS  # noqa: E402
from ..scheduler.buckets import get_bucket_for_count  # noqa: E402
from ..trace.run_log import RunLog  # noqa: E402
from ..trace.trace import Trace  # noqa: E402
from ..workloads.arrivals import Arrivals  # noqa: E402
from .simulation_recorder import SimulationRecorder  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutputs

    from ..workloads.workload import Workload
    from .cost_model import CostModel

MAX_COSTS = 1 << 17
"""Step costs remembered, by bucket and context."""


class VirtualRun:
    """A run of one workload through one scheduler.

    Args:
        workload: who arrives when.
        scheduler: fresh; see `bare_scheduler.make_scheduler`.
        cost_model: how long steps take.
        keep_records: whether a StepRecord is kept of each step, as a Lab does.

    Attributes:
        clock: seconds since the start.
        log: times and counts, of every step.
        trace: the settings and the requests; the records if they are kept.
        recorder: writes the records, or None if they are not kept.
    """

    def __init__(
        self,
        workload: Workload,
        scheduler: Scheduler,
        cost_model: CostModel,
        *,
        keep_records: bool = True,
    ) -> None:
        self.workload = workload
        self.scheduler = scheduler
        self.clock = 0.0
        self.trace = Trace(get_trace_config(scheduler))
        self.log = RunLog(kv_blocks_total=self.trace.config.kv_blocks_total)
        # Many steps cost the same, and a cost model may be slow.
        self.prefill_seconds = lru_cache(MAX_COSTS)(cost_model.prefill_seconds)
        self.decode_seconds = lru_cache(MAX_COSTS)(cost_model.decode_seconds)
        self._decode_ladder = getattr(scheduler, "num_seqs_buckets", None)
        self._block_pool = scheduler.kv_cache_manager.block_pool
        self._arrivals = Arrivals(workload.requests)
        self.recorder = SimulationRecorder(scheduler, self.trace) if keep_records else None

    @property
    def next_arrival(self) -> float:
        """Time of the next arrival that is known already, or infinity."""
        return self._arrivals.next_seconds

    @property
    def num_waiting(self) -> int:
        """Waiting requests, those in vLLM's second queue included."""
        return len(self.scheduler.waiting) + len(getattr(self.scheduler, compat.SIDE_QUEUE))

    @property
    def kv_blocks_used(self) -> int:
        """KV blocks in use now."""
        pool = self._block_pool
        return pool.num_gpu_blocks - NUM_NULL_BLOCKS - pool.get_num_free_blocks()

    def decode_bucket(self, num_rows: int) -> int:
        """Return the rows of the tensor that holds `num_rows` decodes."""
        if self._decode_ladder is None:
            return num_rows
        return get_bucket_for_count(num_rows, self._decode_ladder)

    def end_requests(self, request_ids: list[str]) -> None:
        """Note that these requests ended now, and let those arrive who waited for them."""
        for request_id in request_ids:
            self.log.finished[self.log.index[request_id]] = self.clock
            self._arrivals.release_followers(request_id, self.clock)


def get_finished(outputs: Mapping[int, EngineCoreOutputs]) -> list[tuple[str, str]]:
    """Return the requests that a step ended, as (id, reason)."""
    return [
        (output.request_id, str(output.finish_reason))
        for engine_core_outputs in outputs.values()
        for output in engine_core_outputs.outputs
        if output.finish_reason is not None
    ]
