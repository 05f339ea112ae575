"""The verbs on a trace file: tables, reports, and one clear error for bad input."""

import json
import re

import pytest

from neuron_sched_lab.cli import main
from neuron_sched_lab.cli.settings import read_grid, read_setup
from neuron_sched_lab.scheduler import HoldbackScheduler, NeuronScheduler

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
    assert run("sweep", "--trace", trace, *SMALL, "--set", "max_consecutive_prefills=0,1") == 1
    out = capsys.readouterr().out
    assert "1 cells finished, 1 failed" in out
    assert "ValueError: max_consecutive_prefills: 0 must be" in out
    assert run("sweep", "--trace", trace, *SMALL, "--set", "kv_admission=none") == 1
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
        (["simulate", "--trace", "TRACE", "--format", "x"], "file_format: 'x' is none of"),
        (["simulate", "--trace", "TRACE", "--scale", "0"], "rate: 0.0 must be above 0"),
        (["simulate", "--trace", "TRACE", "--scheduler", "None"], "is no vLLM scheduler class"),
        (["simulate", "--trace", "TRACE", "--model", "x"], "model: 'x' is none of"),
        (["simulate", "--trace", "TRACE", "--max-num-seqs", "0"], "max_num_seqs: 0 must be"),
        (["simulate", "--trace", "TRACE", "--kv-tokens", "5"], "kv_tokens: 5 must hold a block"),
        (["simulate", "--trace", "TRACE", "--set", "kv=1"], "'kv' is no setting; did you mean"),
        (["simulate", "--trace", "TRACE", "--set", "policy"], "'policy' must be NAME=VALUE"),
        (["simulate", "--trace", "TRACE", "--set", "policy=x"], "policy: Input should be 'fcfs'"),
        (["simulate", "--trace", "TRACE", "--set", "kv_admission=x"], "kv_admission: 'x' must be"),
        (["simulate", "--trace", "TRACE", "--report", "r.pdf"], "must end in .html or .png"),
        (["simulate", "--trace", "TRACE", "--report", "no/r.png"], "folder no does not exist"),
        (["buckets", "--trace", "TRACE", "--count", "0"], "count: 0 must be at least 1"),
        (["buckets", "--trace", "TRACE", "--max-num-batched-tokens", "0"], "must be at least 1"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--results", "TRACE"],
         "is no results file of this version"),
        (["sweep", "--trace", "TRACE", "--set", "policy=fcfs", "--figure", "ttft"],
         "did you mean 'ttft_"),
        (["compare", "NeuronScheduler", "x=1", "--trace", "TRACE"], "'x' is no setting"),
        (["compare", "a,b", "NeuronScheduler", "--trace", "TRACE"], "'a' is no vLLM scheduler"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_clear_error(trace, tmp_path, monkeypatch, capsys, argv, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").write_text(HEADER + "\n")
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
