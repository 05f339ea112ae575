"""Sweeps: many settings on many workloads, on as many cores or machines as there are.

    result = sweep(
        {"max_num_seqs": [8, 16, 32], "neuron_config.kv_admission": ["worst_case", "banker"]},
        [workload, workload.scale(2)],
        results="sweep.jsonl",
        n_jobs=4,
    )
    result.table

Each combination is a cell. Finished cells are in the results file at once; a sweep that was killed
goes on where it was. Cells run through joblib, so the same call runs on a cluster:

    with joblib.parallel_config(backend="dask"):        # a distributed.Client is connected
        result = sweep(...)

    from ray.util.joblib import register_ray            # not tested here: no Ray
    register_ray()
    with joblib.parallel_config(backend="ray"):
        result = sweep(...)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .cell_key import cell_key, workload_digest
from .results_file import FAILED, OK, ResultsFile
from .setups import merge_settings, name_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..workloads.workload import Workload


def simulate_cell(workload: Workload, **settings: Any) -> dict[str, Any]:
    """Simulate a cell; return its metrics by name, and whether the scheduler stalled.

    Args:
        workload: who arrives when.
        settings: arguments of `simulate`, and `slo`.
    """
    from ..simulation.simulation import simulate

    slo = settings.pop("slo", None)
    result = simulate(workload, **{"keep_records": False, **merge_settings(settings)})
    return result.metrics(slo).as_dict() | {"stalled": result.stalled}


@dataclass(frozen=True)
class SweepResult:
    """What came of a sweep.

    Attributes:
        table: one row a finished cell, in the order asked for: workload, settings, figures.
        failures: one row a failed cell: workload, settings, error.
        num_run: cells that were run now.
        num_reused: cells taken from the results file.
    """

    table: DataFrame
    failures: DataFrame
    num_run: int
    num_reused: int

    def __str__(self) -> str:
        return (
            f"{len(self.table)} cells finished, {len(self.failures)} failed; {self.num_run} run "
            f"now, {self.num_reused} taken from the results file"
        )


class _Cell(NamedTuple):
    """One combination.

    Attributes:
        key: see `cell_key`.
        names: what stands in the table before its figures.
        settings: its arguments.
        workload: its workload.
    """

    key: str
    names: dict[str, Any]
    settings: dict[str, Any]
    workload: Workload


def sweep(
    settings: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    workloads: Workload | Sequence[Workload],
    *,
    results: str | Path | None = None,
    retry_failed: bool = False,
    n_jobs: int | None = None,
    progress: bool = True,
    run: Callable[..., Mapping[str, Any]] = simulate_cell,
    **common: Any,
) -> SweepResult:
    """Run every setting on every workload.

    Args:
        settings: a grid (name -> values, all combinations are run), or a list of settings.
            Names are arguments of `simulate`, `slo`, or `neuron_config.NAME`.
        workloads: one or several.
        results: file that finished cells are kept in, and taken from the next time. It goes by
            content: see `cell_key`.
        retry_failed: run the cells again that failed before.
        n_jobs: processes, -1 for one a core; None for what joblib's `parallel_config` says, else 1.
        progress: whether to show a bar.
        run: what runs a cell, called as `run(workload, **settings)`; returns figures by name.
        common: settings that all cells have in common.

    Raises:
        ValueError: the grid is empty, two cells are the same, or the results file is not one. An
            exception of a cell is not raised: it is in `failures`.
    """
    if n_jobs == 0:
        raise ValueError("n_jobs: 0 must be at least 1, or -1 for one process a core; give one")
    cells = _make_cells(settings, workloads, run, common)
    with ResultsFile(results) if results is not None else nullcontext() as file:
        lines: dict[str, dict[str, Any]] = {} if file is None else file.lines
        known = {
            cell.key
            for cell in cells
            if cell.key in lines and not (retry_failed and lines[cell.key]["status"] == FAILED)
        }
        to_run = [cell for cell in cells if cell.key not in known]
        for key, line in _run_cells(to_run, run, n_jobs=n_jobs, progress=progress):
            if file is None:
                lines[key] = line
            else:
                file.add(key, line)
    return _collect(cells, lines, len(to_run))


def _make_cells(
    settings: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    workloads: Workload | Sequence[Workload],
    run: Callable[..., Mapping[str, Any]],
    common: Mapping[str, Any],
) -> list[_Cell]:
    workloads = _as_workloads(workloads)
    combinations = _expand(settings) if isinstance(settings, Mapping) else list(settings)
    for combination in combinations:
        if not isinstance(combination, Mapping):
            raise ValueError(
                f"sweep: {combination!r} must be a dict of settings, such as {{'max_num_seqs': 8}}"
            )
    if not combinations or not workloads:
        raise ValueError(
            f"sweep: {len(combinations)} settings and {len(workloads)} workloads; give at least "
            f"one of each"
        )
    digests = [workload_digest(workload) for workload in workloads]
    cells: dict[str, _Cell] = {}
    for workload, digest in zip(workloads, digests, strict=True):
        for own in combinations:
            merged = {**common, **own}
            key = cell_key(run, merged, digest)
            names = {"workload": workload.name} | {n: _named(v) for n, v in own.items()}
            if key in cells:
                raise ValueError(f"sweep: two cells are the same: {names}; name workloads apart")
            cells[key] = _Cell(key, names, merged, workload)
    return list(cells.values())


def _as_workloads(workloads: object) -> list[Workload]:
    from ..workloads.workload import check_workload

    several: list[Any] = list(workloads) if isinstance(workloads, (list, tuple)) else [workloads]
    for workload in several:
        check_workload(workload)
    return several


def _expand(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ValueError(f"{name}: {values!r} must be a list of the values to try")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _named(value: Any) -> Any:
    """Return `value` as it is shown in a table."""
    return value if value is None or isinstance(value, (int, float, str)) else name_of(value)


def _run_cells(
    cells: Sequence[_Cell],
    run: Callable[..., Mapping[str, Any]],
    *,
    n_jobs: int | None,
    progress: bool,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the line of each cell as it finishes."""
    from joblib import Parallel, delayed
    from tqdm import tqdm

    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    finished = parallel(delayed(_try)(run, c.key, c.workload, c.settings) for c in cells)
    names = {cell.key: cell.names for cell in cells}
    for key, line in tqdm(finished, total=len(cells), unit="cell", disable=not progress):
        yield key, {"cell": names[key], **line}


def _try(
    run: Callable[..., Mapping[str, Any]], key: str, workload: Workload, settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Run a cell, on any worker of joblib's; an exception becomes a line like any other."""
    try:
        figures = json.loads(json.dumps(dict(run(workload, **settings)), default=_to_plain))
    except Exception as error:  # noqa: BLE001  (the error of a callback is seen nowhere else)
        return key, {"status": FAILED, "error": f"{type(error).__name__}: {error}"}
    return key, {"status": OK, "figures": figures}


def _to_plain(value: Any) -> Any:
    """Return a number of numpy's as one of Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a figure is a {type(value).__name__}; return numbers and texts")


def _collect(cells: Sequence[_Cell], lines: Mapping[str, Any], num_run: int) -> SweepResult:
    from pandas import DataFrame

    rows: dict[str, list[dict[str, Any]]] = {OK: [], FAILED: []}
    for cell in cells:
        line = lines[cell.key]
        rest = line["figures"] if line["status"] == OK else {"error": line["error"]}
        rows[line["status"]].append(cell.names | rest)
    return SweepResult(
        table=DataFrame(rows[OK]),
        failures=DataFrame(rows[FAILED]),
        num_run=num_run,
        num_reused=len(cells) - num_run,
    )
