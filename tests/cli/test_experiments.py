"""The verbs on a trace file: tables, reports, and one clear error for bad input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_sched_lab.cli import main
from neuron_sched_lab.cli.settings import read_grid, read_settings, read_setup
from neuron_sched_lab.scheduler import HoldbackScheduler, NeuronScheduler
from tests.experiments.broken_policies import CLASSES

ROOT = Path(__file__).parents[2]
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
# Faster than they can be served.
ROWS = [(0.0, 100, 5), (0.005, 50, 3), (0.01, 300, 4), (0.02, 20, 6), (0.03, 700, 2), (0.04, 60, 3)]
SMALL = ["--max-num-seqs", "2", "--max-num-batched-tokens", "256", "--max-model-len", "1024"]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "small.csv"
    rows = [f"2023-11-16 18:15:{40 + t:010.7f},{p},{o}" for t, p, o in ROWS]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return str(path)


def run(*argv):
    return main([str(a) for a in argv])


def test_simulate(trace, tmp_path, capsys):
    report = tmp_path / "r.html"
    assert run("simulate", "--trace", trace, *SMALL, "--set", "kv_admission=banker",
               "--slo-ttft", 100, "--report", report) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert out.startswith("small: 6 requests, 125 requests/s")
    assert "How does NeuronScheduler serve small?" in out
    assert re.search(r"requests +6 of 6 finished", out)
    assert f"Report: {report}" in out
    assert "Requests over time. At most 2 run and" in report.read_text()


def test_simulate_takes_other_schedulers_sizes_and_models(trace, capsys):
    assert run("simulate", "--trace", trace, *SMALL, "--scheduler", "HoldbackScheduler",
               "--requests", 3, "--scale", 2, "--kv-tokens", 4096, "--model", "gpt-oss-20b",
               "--set", "policy=priority", "--set", "max_num_seqs=1") == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "small: 3 requests, 400 requests/s" in out
    assert "How does HoldbackScheduler serve small?" in out
    assert "decode batch           1.0 requests" in out


def test_buckets(trace, tmp_path, capsys):
    report = tmp_path / "r.png"
    assert run("buckets", "--trace", trace, "--count", 3, "--max-num-batched-tokens", 1024,
               "--report", report) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "powers of two (Neuron)" in out
    assert "none, 3 buckets" in out
    ladder = json.loads(out.rpartition("num_batched_tokens_buckets: ")[2])
    assert ladder[-1] == 1024
    assert len(ladder) == 3
    assert report.read_bytes().startswith(b"\x89PNG")


def test_sweep_and_its_resumption(trace, tmp_path, capsys):
    results, report = tmp_path / "s.jsonl", tmp_path / "r.html"
    command = ["sweep", "--trace", trace, *SMALL, "--results", results, "--kv-tokens", 2048]
    command += ["--set", "max_num_seqs=2,4", "--set", "kv_admission=worst_case,banker"]
    assert run(*command, "--report", report) == 0
    out = capsys.readouterr().out
    assert "4 cells finished, 0 failed; 4 run now, 0 taken from the results file" in out
    assert "How does output_tokens_per_second depend on max_num_seqs" in out
    assert "output_tokens_per_second by max_num_seqs." in report.read_text()
    assert run(*command, "--figure", "ttft_p99") == 0
    out = capsys.readouterr().out
    assert "0 run now, 4 taken from the results file" in out
    assert "How does ttft_p99 depend on" in out


def test_a_sweep_says_what_failed(trace, capsys):
    assert run("sweep", "--trace", trace, *SMALL, "--set", "num_seqs_buckets=[1],[2]") == 1
    out = capsys.readouterr().out
    assert "1 cells finished, 1 failed" in out
    assert "ValueError: num_seqs_buckets: last bucket 1 must" in out
    assert run("sweep", "--trace", trace, *SMALL, "--set", "num_seqs_buckets=[1]") == 1
    assert "How does" not in capsys.readouterr().out


def test_a_sweep_over_names_is_drawn_as_bars(trace, tmp_path, capsys):
    report = tmp_path / "r.html"
    assert run("sweep", "--trace", trace, *SMALL, "--report", report, "--set",
               "scheduler=NeuronScheduler,HoldbackScheduler") == 0  # fmt: skip
    assert "with scheduler = HoldbackScheduler" in capsys.readouterr().out
    assert '"type":"bar"' in report.read_text()


def test_compare(trace, tmp_path, capsys):
    report = tmp_path / "r.png"
    assert run("compare", "NeuronScheduler", "HoldbackScheduler", "--trace", trace, *SMALL,
               "--ignore-padding", "--report", report) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "Where do NeuronScheduler and HoldbackScheduler part" in out
    assert re.search(r"step \d+: only HoldbackScheduler decodes ", out)
    assert "held back:" in out
    assert report.exists()


def test_compare_two_configurations(trace, capsys):
    argv = ["--trace", trace, *SMALL, "--kv-tokens", 1024]
    assert run("compare", "kv_admission=banker", "kv_admission=worst_case", *argv) == 0
    out = capsys.readouterr().out
    assert "kv_admission=banker prefills" in out
    assert "KV cache saturated" in out
    assert run("compare", "NeuronScheduler", "NeuronScheduler", *argv) == 0
    assert "They do not: NeuronScheduler (a) and NeuronScheduler (b)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["simulate", "--trace", "no.csv"], "no.csv"),
        (["simulate", "--trace", "EMPTY"], "there is no request in it"),
        (["simulate", "--trace", "BAD"], "line 3"),
        (["simulate", "--trace", "BLANK"], "the file is empty"),
        (["simulate", "--trace", ""], "--trace: '' does not exist"),
        (["simulate", "--trace", "."], "--trace: '.' is a folder"),
        (["simulate", "--trace", "BAD"], "command line: --skip-bad-rows"),
        (["simulate", "--trace", "TRACE", "--requests", "0"],
         "--requests: 0 must be an int of at least 1"),
        (["simulate", "--trace", "TRACE", "--format", "azur"], "did you mean 'azure'?"),
        (["simulate", "--trace", "TRACE", "--scale", "0"],
         "--scale: 0.0 must be above 0, a finite number"),
        (["simulate", "--trace", "TRACE", "--scale", "inf"],
         "--scale: inf must be above 0, a finite number"),
        (["simulate", "--trace", "TRACE", "--slo-ttft", "nan"], "--slo-ttft: nan must be"),
        (["simulate", "--trace", "TRACE", "--slo-tpot", "-1"], "--slo-tpot: -1.0 must be"),
        (["simulate", "--trace", "TRACE", "--scheduler", "None"], "is no vLLM scheduler class"),
        (["simulate", "--trace", "TRACE", "--model", "x"], "--model: 'x' is no model; choose"),
        (["simulate", "--trace", "TRACE", "--max-num-seqs", "0"], "max_num_seqs: 0 must be"),
        (["simulate", "--trace", "TRACE", "--kv-tokens", "5"], "--kv-tokens: 5 must hold a block"),
        (["simulate", "--trace", "TRACE", "--kv-tokens", "1000000000000"],
         "--kv-tokens: 1000000000000 must be at most"),
        (["simulate", "--trace", "TRACE", "--max-model-len", "1000000000"],
         "max_model_len: 1000000000 must be at most"),
        (["simulate", "--trace", "TRACE", "--max-model-len", "16000000"], "num_kv_blocks: "),
        (["simulate", "--trace", "TRACE", "--set", "kv=1"], "'kv' is no setting; choose one of"),
        (["simulate", "--trace", "TRACE", "--set", "max_num_sequ=1"],
         "did you mean 'max_num_seqs'?"),
        (["simulate", "--trace", "TRACE", "--set", "scheduler_cls=x"], "'scheduler_cls' is no"),
        (["simulate", "--trace", "TRACE", "--set", "=1"], "'=1' must be NAME=VALUE"),
        (["simulate", "--trace", "TRACE", "--set", "policy="], "policy has no value; write"),
        (["simulate", "--trace", "TRACE", "--set", "policy=fcfs", "--set", "policy=fcfs"],
         "policy stands twice"),
        (["simulate", "--trace", "TRACE", "--set", "policy"], "'policy' must be NAME=VALUE"),
        (["simulate", "--trace", "TRACE", "--set", "policy=x"],
         "policy: 'x': Input should be 'fcfs'"),
        (["simulate", "--trace", "TRACE", "--set", "kv_admission=x"], "kv_admission: 'x' must be"),
        (["simulate", "--trace", "TRACE", "--report", "r.pdf"], "must end in .html or .png"),
        (["simulate", "--trace", "TRACE", "--report", "no/r.png"], "folder no does not exist"),
        (["simulate", "--trace", "TRACE", "--report", ""], "must end in .html or .png"),
        (["buckets", "--trace", "TRACE", "--report", "DIR.html"], "is no file name"),
        (["buckets", "--trace", "TRACE", "--max-num-batched-tokens", "100000000000"],
         "max_num_batched_tokens: 100000000000 must be at most"),
        (["buckets", "--trace", "TRACE", "--count", "0"], "count: 0 must be an int of at least 1"),
        (["buckets", "--trace", "TRACE", "--max-num-batched-tokens", "0"],
         "must be an int of at least 1"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--results", "TRACE"],
         "is no results file of this version"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--results", "."], "--results: '.'"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--results", "no/r.jsonl"],
         "--results: the folder no does not exist"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--jobs", "0"], "--jobs: 0 must be"),
        (["sweep", "--trace", "TRACE", "--set", "policy=,"], "there is no value in it"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--set", "policy=fcfs"],
         "policy stands twice"),
        (["sweep", "--trace", "TRACE", "--set", "kv_admission=banker,bankr"], "'bankr' must be"),
        (["sweep", "--trace", "TRACE", "--set", "max_consecutive_prefills=0,1"], "0 must be"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--figure", "ttft"],
         "did you mean 'ttft_"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--figure", ""], "choose one of"),
        (["compare", "NeuronScheduler", "", "--trace", "TRACE"], "'' is empty"),
        (["compare", "NeuronScheduler", ",", "--trace", "TRACE"], "',' is empty"),
        (["compare", "NeuronScheduler", "x=1", "--trace", "TRACE"], "'x' is no setting"),
        (["compare", "a,b", "NeuronScheduler", "--trace", "TRACE"], "'a' is no vLLM scheduler"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_clear_error(trace, tmp_path, monkeypatch, capsys, argv, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").write_text(HEADER + "\n")
    (tmp_path / "BLANK").touch()
    (tmp_path / "DIR.html").mkdir()
    (tmp_path / "BAD").write_text(HEADER + "\n2023-11-16 18:15:46.0,5,5\n2023-11-16,x,5\n")
    argv = [trace if a == "TRACE" else a for a in argv]
    assert run(*argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert error.startswith(f"neuron-sched-lab {argv[0]}: ")
    assert says in error


def test_bad_rows_can_be_left_out(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text(f"{HEADER}\n2023-11-16 18:15:46.0,5,5\nx,5,5\n2023-11-16 18:15:47.0,5,5\n")
    assert run("simulate", "--trace", path, "--skip-bad-rows", *SMALL) == 0
    assert "1 rows skipped" in capsys.readouterr().out


def test_settings_are_read():
    assert read_setup("HoldbackScheduler") == {"scheduler": HoldbackScheduler}
    assert read_setup("NeuronScheduler,num_seqs_buckets=[1,8],max_num_seqs=8,policy=fcfs") == {
        "scheduler": NeuronScheduler,
        "neuron_config.num_seqs_buckets": [1, 8],
        "max_num_seqs": 8,
        "policy": "fcfs",
    }
    assert read_grid(["num_seqs_buckets=[1,8],[8]", "max_consecutive_prefills=None,2"]) == {
        "neuron_config.num_seqs_buckets": [[1, 8], [8]],
        "neuron_config.max_consecutive_prefills": [None, 2],
    }
    with pytest.raises(ValueError, match="policy stands twice"):
        read_setup("policy=fcfs,policy=priority")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_num_seqs=x", "max_num_seqs: 'x' must be an int of at least 1"),
        ("max_num_seqs=true", "max_num_seqs: True must be an int"),
        ("max_num_seqs=2.5", "max_num_seqs: 2.5 must be an int"),
        ("num_kv_blocks=-5", "num_kv_blocks: -5 must be an int of at least 2"),
        ("num_kv_blocks=1", "num_kv_blocks: 1 must be an int of at least 2"),
        ("block_size=0", "block_size: 0 must be an int of at least 1"),
        ("max_steps=x", "max_steps: 'x' must be an int"),
        ("max_steps=-1", "max_steps: -1 must be an int of at least 1"),
        ("async_scheduling=x", "async_scheduling: 'x' must be True or False"),
        ("fast_forward=x", "fast_forward: 'x' must be True or False"),
        ("policy=foo", "policy: 'foo': Input should be 'fcfs' or 'priority'"),
        ("kv_admission=foo", "kv_admission: 'foo' must be"),
    ],
)
def test_a_value_is_checked_before_anything_runs(text, says):
    for read in (read_setup, lambda t: read_settings([t]), lambda t: read_grid([t])):
        with pytest.raises(ValueError) as error:
            read(text)
        assert says in str(error.value)


# Classes and modules of the user's

@pytest.fixture
def users(tmp_path, monkeypatch):
    """Modules of a user: schedulers that do not work, and modules that do not import."""
    texts = {
        "own_policies": CLASSES,
        "no_syntax": "class X(",
        "no_division": "1 / 0",
        "leaves": "import sys; sys.exit(3)",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_syntax.X", "module 'no_syntax' does not import (SyntaxError"),
        ("no_division.X", "module 'no_division' does not import (ZeroDivisionError"),
        ("leaves.X", "module 'leaves' does not import (SystemExit: 3)"),
        ("own_policies.X", "'own_policies.X' is no vLLM scheduler class"),
        ("NeuronSchedular", "did you mean 'NeuronScheduler'?"),
        ("own_policies.Init", "scheduler: Init raised TypeError before the first step"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_clear_error(trace, capsys, name, says):
    for argv in (["simulate", "--scheduler", name], ["compare", "NeuronScheduler", name]):
        assert run(*argv, "--trace", trace, *SMALL) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        assert says in error


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--scheduler", "own_policies.Never"], "stalled"),
        (["--scheduler", "own_policies.Crash"], "crashed in step 1 (KeyError: 'boom')"),
        (["--max-model-len", "10"], "requests refused: 6"),
    ],
)
def test_a_run_of_no_use_has_status_1(trace, capsys, options, says):
    assert run("simulate", "--trace", trace, *SMALL, *options) == 1
    assert says in capsys.readouterr().out


@pytest.mark.usefixtures("users")
def test_a_comparison_and_a_sweep_with_a_stall_have_status_1(trace, capsys):
    name = "own_policies.Never"
    assert run("compare", "NeuronScheduler", name, "--trace", trace, *SMALL) == 1
    assert f"{name} stalled" in capsys.readouterr().out
    setting = f"scheduler=NeuronScheduler,{name}"
    assert run("sweep", "--trace", trace, *SMALL, "--set", setting) == 1
    out = capsys.readouterr().out
    assert "1 of 2 cells stalled" in out
    assert "The first: scheduler = Never" in out
    assert run("sweep", "--trace", trace, "--set", "max_model_len=10,16384") == 1
    assert "1 of 2 cells had all requests refused" in capsys.readouterr().out


def test_a_pipe_gets_our_own_lines_only(trace):
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_LOGGING_LEVEL"}
    command = [sys.executable, "-m", "neuron_sched_lab", "buckets", "--trace", trace]
    done = subprocess.run(
        [*command, "--max-num-batched-tokens", "1024"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("small: 6 requests")
    assert "INFO" not in done.stdout
    assert "Traceback" not in done.stderr
