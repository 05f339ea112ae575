"""Calibration: a MeasuredCostModel from a live run.

    live = replay(lab, poisson(4, 100))
    cost_model = calibrate(live.log, live.trace)

For each graph, a prefill bucket or a decode batch bucket, the measured steps are described by a
straight line over the context. Its slope is the median of the slopes between pairs of steps
(Theil-Sen), which a few slow steps hardly move; its height is the mean, slow steps included, since
those happen in the next run too.

Source: H. Theil (1950), P. K. Sen (1968).
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from ..trace.records import DECODE, PREFILL
from ..trace.run_columns import Runs
from ..trace.run_log import RunLog
from .cost_model import Line, MeasuredCostModel

if TYPE_CHECKING:
    from ..trace.records import StepRecord
    from ..trace.trace import Trace

MIN_STEPS_FOR_SLOPE = 12
MAX_STEPS_FOR_SLOPE = 400
"""The number of pairs grows with the square; of more steps than this, every n-th is used."""


def calibrate(log: RunLog, trace: Trace) -> MeasuredCostModel:
    """Return the step times of a live run by graph.

    Steps that mix phases are left out, and the first step of each graph, in which it may still be
    compiled, where there are others.

    Args:
        log: the run's times, from `replay` or `RunLog.from_trace`.
        trace: its records, one for each step of the log.

    Raises:
        ValueError: the two do not belong together, or there is no step of one of the phases.
    """
    if len(trace) != log.num_steps:
        raise ValueError(
            f"trace: {len(trace)} records for {log.num_steps} steps in the log; give those of the "
            f"same run"
        )
    samples: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for record, seconds in zip(trace, Runs(log).step_seconds.tolist(), strict=True):
        if record.phase in {PREFILL, DECODE}:
            samples[record.phase, _size(record)].append((_context(record), seconds))
    tables: dict[str, dict[int, Line]] = {PREFILL: {}, DECODE: {}}
    for (phase, size), steps in samples.items():
        tables[phase][size] = fit_line(steps[1:] or steps)
    request_seconds = log.intake_seconds / max(len(log.request_ids), 1)
    return MeasuredCostModel(tables[PREFILL], tables[DECODE], request_seconds)


def fit_line(steps: list[tuple[int, float]]) -> Line:
    """Return the line through (context, seconds) samples; flat if there are few.

    A negative slope is noise and becomes a flat line.
    """
    slope = 0.0
    if len(steps) >= MIN_STEPS_FOR_SLOPE:
        thinned = steps[:: -(-len(steps) // MAX_STEPS_FOR_SLOPE)]
        contexts, seconds = np.array(thinned).T
        i, j = np.triu_indices(len(thinned), 1)
        apart = contexts[i] != contexts[j]
        i, j = i[apart], j[apart]
        if len(i):
            slopes = (seconds[j] - seconds[i]) / (contexts[j] - contexts[i])
            slope = max(0.0, float(np.median(slopes)))
    return Line(fmean(s - slope * context for context, s in steps), slope)


def _size(record: StepRecord) -> int:
    if record.phase == DECODE:
        return record.decode_batch_bucket or len(record.scheduled)
    return record.num_padded_tokens


def _context(record: StepRecord) -> int:
    """Return the step's `context`, as a CostModel defines it."""
    longest = max(s.num_computed_tokens for s in record.scheduled)
    return longest + 1 if record.phase == DECODE else longest
