"""The demo's requests and the command line."""

import json
import sys

import pytest

from neuron_sched_lab.cli import main
from neuron_sched_lab.engine.live_run import DemoRequest, default_requests, read_requests
from tests.experiments.broken_policies import CLASSES


def write(tmp_path, *lines):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_file_of_requests(tmp_path):
    path = write(
        tmp_path,
        '{"prompt": "1 2 ", "max_tokens": 3, "expected": "3 4", "request_id": "mine"}',
        "",
        '{"prompt": [5, 6, 7]}',
    )
    assert read_requests(path) == [
        DemoRequest("mine", "1 2 ", 3, "3 4"),
        DemoRequest("r1", (5, 6, 7)),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[1]", 'line 2: no "prompt"'),
        ('{"promt": "x"}', 'line 2: no "prompt"'),
        ('{"prompt": "x", "max_token": 3}', "line 2: unknown key 'max_token'"),
        ('{"prompt": 5}', "line 2: prompt: 5 must be text or a list of token ids"),
        ('{"prompt": [true]}', "line 2: prompt: [True] must be"),
        ('{"prompt": "x", "max_tokens": 0}', "line 2: max_tokens: 0 must be"),
        ('{"prompt": "x", "max_tokens": true}', "line 2: max_tokens: True must be"),
        ('{"prompt": "x", "expected": 7}', "line 2: expected: 7 must be text"),
        ('{"prompt": "x", "request_id": null}', "line 2: request_id: None must be text"),
        ('{"prompt": "x", "request_id": ["x"]}', "line 2: request_id: ['x'] must be text"),
        ('{"prompt": "x", "request_id": "r0"}', "line 2: request_id: 'r0' stands twice"),
        ('{"prompt": "\\ud800"}', "line 2: prompt: half of a surrogate pair"),
        ("[" * 100_000, "line 2: no JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path, '{"prompt": "good"}', line)
    with pytest.raises(ValueError) as error:
        read_requests(path)
    assert message in str(error.value)


def test_a_binary_file_is_named(tmp_path):
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b'{"prompt": "good"}\n\xff\xfe\n')
    with pytest.raises(ValueError, match="binary.jsonl, line 2: no UTF-8 text"):
        read_requests(path)


def test_an_empty_file(tmp_path):
    with pytest.raises(ValueError, match="no request in it"):
        read_requests(write(tmp_path, "", " "))


@pytest.mark.parametrize(
    ("text", "right"), [("34", True), ("34\n9", True), ("34 5", True), ("345", False), ("3", False)]
)
def test_an_answer_must_end_where_the_expected_ends(text, right):
    assert DemoRequest("r", "x", expected="34").is_answered_by(text) is right


def test_without_an_expected_answer_there_is_no_verdict():
    assert DemoRequest("r", "x").is_answered_by("anything") is None


def test_default_requests_have_prompts_longer_than_a_chunk():
    lengths = [len(request.prompt) for request in default_requests()]
    assert max(lengths) > 256
    assert min(lengths) < 128


@pytest.fixture
def own_policies(tmp_path, monkeypatch):
    (tmp_path / "own_demo_policies.py").write_text(CLASSES)
    monkeypatch.delitem(sys.modules, "own_demo_policies", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_policies")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Never", "Never stalled: steps 1 to 10 ran nothing and changed nothing though 10 "),
        ("Crash", "Crash crashed in step 1 (KeyError: 'boom', in own_demo_policies.py, line 10)"),
    ],
)
def test_a_scheduler_that_stalls_or_crashes_ends_the_demo_with_status_1(name, message, capsys):
    assert main(["demo", "--scheduler", f"own_demo_policies.{name}"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.usefixtures("own_policies")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["--scheduler", "NeuronSchedular"], "'NeuronSchedular' is no vLLM scheduler class"),
        (["--scheduler", "no_such_module.X"], "module 'no_such_module' does not import"),
        (["--model", "/no/such/model"], "model: '/no/such/model'"),
        (["--max-num-seqs", "0"], "max_num_seqs: 0"),
        (["--max-num-batched-tokens", "100000000"], "max_num_batched_tokens: 100000000 must be at"),
        (["--requests", ""], "--requests: '' does not exist"),
        (["--requests", "."], "--requests: '.' is a folder"),
        (["--scheduler", "own_demo_policies.Init"], "no engine starts with Init (TypeError"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys):
    assert main(["demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_the_demo_end_to_end(tmp_path, capfd):
    requests = default_requests()[:4]
    lines = [
        json.dumps(
            {
                "prompt": r.prompt,
                "max_tokens": r.max_tokens,
                "expected": r.expected,
                "request_id": r.request_id,
            }
        )
        for r in requests
    ]
    assert main(["demo", "--requests", str(write(tmp_path, *lines))]) == 0
    output = capfd.readouterr().out
    assert output.count("(right)") == 4
    assert "WRONG" not in output
    assert "gave the same tokens for 4 prompts" in output
    assert "ACTIVE_PREFILL" in output
    assert "distinct shapes" in output
