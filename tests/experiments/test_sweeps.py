"""Sweeps: what is run, what is kept, what is run again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import pytest

from neuron_sched_lab.experiments.cell_key import cell_key, workload_digest
from neuron_sched_lab.experiments.results_file import HEADER, ResultsFile
from neuron_sched_lab.experiments.sweeps import sweep
from neuron_sched_lab.scheduler import HoldbackScheduler, NeuronScheduler
from neuron_sched_lab.simulation.cost_model import FunctionCostModel, Line, MeasuredCostModel
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload

ROOT = Path(__file__).parents[2]
WORKLOAD = Workload("w", (WorkloadRequest("a", 0.0, 10, 2), WorkloadRequest("b", 0.1, 20, 3)))
QUIET = {"progress": False}


def count_tokens(workload, *, factor=1, fail_at=None):
    """Stands in for a simulation."""
    if factor == fail_at:
        raise RuntimeError(f"factor {factor}")
    tokens = sum(r.num_output_tokens for r in workload)
    return {"tokens": np.int64(factor * tokens), "share": np.float64(0.5)}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_grid_is_all_combinations_on_all_workloads():
    other = Workload("v", WORKLOAD.requests[:1])
    result = sweep({"factor": [1, 10]}, [WORKLOAD, other], run=count_tokens, **QUIET)
    assert result.table.to_dict("records") == [
        {"workload": "w", "factor": 1, "tokens": 5, "share": 0.5},
        {"workload": "w", "factor": 10, "tokens": 50, "share": 0.5},
        {"workload": "v", "factor": 1, "tokens": 2, "share": 0.5},
        {"workload": "v", "factor": 10, "tokens": 20, "share": 0.5},
    ]
    assert str(result) == "4 cells finished, 0 failed; 4 run now, 0 taken from the results file"


def test_a_list_of_settings_is_run_as_it_stands():
    result = sweep([{}, {"factor": 3}], WORKLOAD, run=count_tokens, **QUIET)
    assert result.table["tokens"].tolist() == [5, 15]


def test_cells_are_simulated_by_default():
    result = sweep(
        {
            "scheduler": [NeuronScheduler, HoldbackScheduler],
            "neuron_config.kv_admission": ["banker"],
        },
        WORKLOAD,
        max_num_seqs=2,
        max_num_batched_tokens=128,
        max_model_len=256,
        neuron_config={"num_seqs_buckets": [2]},
        **QUIET,
    )
    assert result.failures.empty
    assert result.table["scheduler"].tolist() == ["NeuronScheduler", "HoldbackScheduler"]
    assert result.table["num_finished"].tolist() == [2, 2]
    assert result.table["prefill_padding_share"][0] > result.table["prefill_padding_share"][1]


def test_a_second_call_runs_nothing_and_returns_the_same(tmp_path):
    path = tmp_path / "s.jsonl"
    first = sweep({"factor": [1, 2]}, WORKLOAD, run=count_tokens, results=path, **QUIET)
    again = sweep({"factor": [2, 1]}, WORKLOAD, run=count_tokens, results=path, **QUIET)
    more = sweep({"factor": [1, 2, 3]}, WORKLOAD, run=count_tokens, results=path, **QUIET)
    assert (first.num_run, again.num_run, more.num_run) == (2, 0, 1)
    assert again.table["tokens"].tolist() == [10, 5]
    assert more.table[:2].equals(first.table)
    assert lines_of(path)[1]["cell"] == {"workload": "w", "factor": 1}


def test_failed_cells_are_kept_apart_and_run_again_on_demand(tmp_path):
    path = tmp_path / "s.jsonl"
    grid, options = {"factor": [1, 2, 3]}, {"run": count_tokens, "results": path, "fail_at": 2}
    result = sweep(grid, WORKLOAD, **options, **QUIET)
    assert result.table["factor"].tolist() == [1, 3]
    assert result.failures.to_dict("records") == [
        {"workload": "w", "factor": 2, "error": "RuntimeError: factor 2"}
    ]
    assert sweep(grid, WORKLOAD, **options, **QUIET).num_run == 0
    retried = sweep(grid, WORKLOAD, retry_failed=True, **options, **QUIET)
    assert (retried.num_run, retried.num_reused, len(retried.failures)) == (1, 2, 1)
    assert [line["status"] for line in lines_of(path)[1:]] == ["ok", "failed", "ok", "failed"]


def test_no_processes_are_refused():
    with pytest.raises(ValueError, match="n_jobs: 0 must be at least 1, or -1"):
        sweep([{}], WORKLOAD, run=count_tokens, n_jobs=0, **QUIET)


def test_a_figure_that_is_no_number_fails_its_cell():
    result = sweep([{}], WORKLOAD, run=lambda workload: {"x": object()}, **QUIET)
    assert "a figure is a object" in result.failures["error"][0]


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_line_that_was_cut_off_is_run_again(tmp_path, cut):
    path = tmp_path / "s.jsonl"
    sweep({"factor": [1, 2]}, WORKLOAD, run=count_tokens, results=path, **QUIET)
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    path.write_bytes(whole[: last + cut] if cut > 0 else whole[:cut])
    result = sweep({"factor": [1, 2]}, WORKLOAD, run=count_tokens, results=path, **QUIET)
    assert (result.num_run, result.num_reused) == (1, 1)
    assert path.read_bytes() == whole


def test_a_header_that_was_cut_off_is_written_again(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(HEADER)[:10])
    sweep([{}], WORKLOAD, run=count_tokens, results=path, **QUIET)
    assert lines_of(path)[0] == HEADER


@pytest.mark.parametrize("text", ["TIMESTAMP,Tokens\n1,2\n", '{"a": 1}\n', "no newline", "\n"])
def test_other_files_are_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="no results file of this version"):
        sweep([{}], WORKLOAD, run=count_tokens, results=path, **QUIET)
    assert path.read_text() == text


DAMAGED = {
    "no JSON": "{broken",
    "no status": '{"key": "x"}',
    "no object": "3",
    "no key": '{"status": "ok"}',
    "deep": "[" * 200_000,
    "long": '{"key": "' + "x" * 2**20 + '", "status": "ok"}',
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(HEADER) + "\n" + line + "\n" + '{"key": "x", "status": "ok"}\n')
    with pytest.raises(ValueError, match="line 2"):
        sweep([{}], WORKLOAD, run=count_tokens, results=path, **QUIET)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("neuron_sched_lab.experiments.results_file.MAX_BYTES", 10)
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(HEADER) + "\n")
    with pytest.raises(ValueError, match="bytes; at most 10 are read"):
        sweep([{}], WORKLOAD, run=count_tokens, results=path, **QUIET)


def test_two_sweeps_do_not_share_a_file(tmp_path):
    path = tmp_path / "s.jsonl"
    with ResultsFile(path), pytest.raises(ValueError, match="open in another sweep"):
        sweep([{}], WORKLOAD, run=count_tokens, results=path, **QUIET)
    assert sweep([{}], WORKLOAD, run=count_tokens, results=path, **QUIET).num_run == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, None),
        ([], "0 settings and 1 workloads"),
        ({"factor": []}, "0 settings"),
        ({"factor": 3}, "factor: 3 must be a list"),
        ({"factor": "abc"}, "must be a list"),
        ({"factor": [1, 1]}, "two cells are the same"),
        ({"factor": [object()]}, "factor: a object cannot be told from another"),
    ],
)
def test_bad_grids(settings, says):
    if says is None:
        # A grid without names has one combination: none.
        assert len(sweep(settings, WORKLOAD, run=count_tokens, **QUIET).table) == 1
        return
    with pytest.raises(ValueError, match=says):
        sweep(settings, WORKLOAD, run=count_tokens, **QUIET)


# What a cell goes by


def key(workload=WORKLOAD, run=count_tokens, **settings):
    return cell_key(run, settings, workload_digest(workload))


def test_keys_go_by_content():
    table = {128: Line(0.1), 256: Line(0.2, 1e-6)}
    same = MeasuredCostModel(prefill=dict(reversed(table.items())), decode={1: Line(0.01)})
    assert key(cost_model=MeasuredCostModel(table, {1: Line(0.01)})) == key(cost_model=same)
    assert key(a=1, b=[2]) == key(b=(2,), a=1)
    different = [
        key(cost_model=same),
        key(cost_model=MeasuredCostModel(table, {1: Line(0.02)})),
        key(a=1),
        key(a=2),
        key(b=1),
        key(WORKLOAD.scale(2), a=1),
        key(scheduler=NeuronScheduler),
        key(scheduler=HoldbackScheduler),
    ]
    assert len(set(different)) == len(different)


def test_functions_on_one_line_and_in_loops_are_told_apart():
    pair = [lambda b, c: 1.0, lambda b, c: 2.0]
    looped = [lambda b, c, n=n: n for n in (1, 2)]

    def closed(n):
        return lambda b, c: n

    costs = [*pair, *looped, closed(1), closed(2)]
    keys = {key(cost_model=FunctionCostModel(cost, pair[0])) for cost in costs}
    assert len(keys) == len(costs)
    assert key(cost=closed(1)) == key(cost=closed(1))


def test_a_class_of_ones_own_is_known_by_its_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for name, limit in (("first", 1), ("second", 2), ("third", 1)):
        (tmp_path / f"policy_{name}.py").write_text(
            "from neuron_sched_lab.scheduler import NeuronScheduler\n\n"
            f"class Mine(NeuronScheduler):\n    limit = {limit}\n"
        )
        mine = __import__(f"policy_{name}").Mine
        mine.__module__ = "policy"
        monkeypatch.setitem(sys.modules, "policy", sys.modules[f"policy_{name}"])
        keys.append(key(scheduler=mine))
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


def test_a_class_without_a_source_is_refused():
    namespace = {"NeuronScheduler": NeuronScheduler, "__name__": "nowhere"}
    exec("class Mine(NeuronScheduler): pass", namespace)  # noqa: S102  (as a class typed in)
    with pytest.raises(ValueError, match="scheduler: the source of .* is not to be found"):
        key(scheduler=namespace["Mine"])


# Killed, and elsewhere

SCRIPT = """
import sys, time
from pathlib import Path
from neuron_sched_lab.experiments.sweeps import sweep
from neuron_sched_lab.workloads.workload import Workload, WorkloadRequest

FOLDER = Path(sys.argv[1])

def cell(workload, *, number, folder):
    with open(folder + "/started", "a") as log:
        log.write(f"{number}\\n")
    while number == 5 and not Path(folder, "go").exists():
        time.sleep(0.01)
    return {"square": number ** 2}

if __name__ == "__main__":
    result = sweep(
        {"number": list(range(12))}, Workload("w", (WorkloadRequest("a", 0, 1, 1),)), run=cell,
        results=FOLDER / "s.jsonl", folder=str(FOLDER), n_jobs=int(sys.argv[2]), progress=False,
    )
    print(result.num_run, result.table["square"].tolist())
"""


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_killed_sweep_resumes_without_losing_or_repeating_a_cell(tmp_path, n_jobs):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), str(n_jobs)]
    results, started = tmp_path / "s.jsonl", tmp_path / "started"
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    # Cell 5 does not end, so the sweep is in the middle; with two processes others go on.
    while not (started.exists() and "5\n" in started.read_text() and enough(results, n_jobs)):
        assert process.poll() is None
        time.sleep(0.02)
    # With its workers, as where a machine goes down: else they live on and begin further cells.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {line["cell"]["number"] for line in lines_of(results)[1:]}
    assert 5 not in finished
    assert len(finished) >= (5 if n_jobs == 1 else 6)

    (tmp_path / "go").touch()
    started_before = started.read_text()
    out = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    ).stdout
    assert out == f"{12 - len(finished)} {[n**2 for n in range(12)]}\n"
    numbers = [line["cell"]["number"] for line in lines_of(results)[1:]]
    assert sorted(numbers) == list(range(12))
    resumed = started.read_text()[len(started_before) :].split()
    assert sorted(map(int, resumed)) == sorted(set(range(12)) - finished)


def enough(results, n_jobs):
    """With two processes, wait for a cell behind the one that does not end."""
    num_lines = results.read_bytes().count(b"\n") if results.exists() else 0
    return num_lines > (5 if n_jobs == 1 else 6)


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_same_call_runs_on_a_dask_cluster(tmp_path):
    distributed = pytest.importorskip("distributed")
    grid = {"factor": [1, 2, 3, 4], "fail_at": [4]}
    options = {"run": count_tokens, "results": tmp_path / "s.jsonl", **QUIET}
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,  # threads, which still talk over sockets
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address=None,
    )
    with cluster, distributed.Client(cluster), joblib.parallel_config(backend="dask"):
        result = sweep(grid, WORKLOAD, **options)
    assert (result.num_run, result.table["tokens"].tolist()) == (4, [5, 10, 15])
    assert result.failures["error"].tolist() == ["RuntimeError: factor 4"]
    here = sweep(grid, WORKLOAD, **options)
    assert here.num_run == 0
    assert here.table.equals(result.table)
