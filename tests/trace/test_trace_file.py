"""Traces as files: what is saved is loaded, what is damaged is named, Perfetto can read it."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from neuron_sched_lab.trace.records import RequestInfo
from neuron_sched_lab.trace.trace import Trace
from tests.widgets.fake_lab import CONFIG, HOSTILE, make_lab


@pytest.fixture
def trace():
    lab = make_lab(with_inputs=True)
    for _ in range(8):
        lab.step()
    lab.abort("r3")
    return lab.run()


@pytest.fixture
def path(tmp_path, trace):
    trace.save(tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl"


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def damage(path, number, old, new):
    """Replace `old` in a line, counted from 1."""
    content = lines(path)
    assert old in content[number - 1]
    content[number - 1] = content[number - 1].replace(old, new, 1)
    path.write_text("\n".join(content), encoding="utf-8")


def line_of_step(path, step):
    start = f'{{"step": {{"step": {step},'
    return next(n for n, line in enumerate(lines(path), 1) if line.startswith(start))


def test_what_is_saved_is_loaded(trace, path):
    assert Trace.load(path) == trace
    assert HOSTILE in Trace.load(path).requests


def test_one_step_a_line_that_a_person_can_read(trace, path):
    rows = [json.loads(line) for line in lines(path)]
    assert rows[0]["format"] == "neuron_sched_lab.trace"
    assert sum("step" in row for row in rows) == len(trace)
    first = next(row["step"] for row in rows if "step" in row)
    assert (first["phase"], first["held_head"]) == ("prefill", "r1")
    assert "preempted" not in first  # nobody was: left out


def test_blocks_that_did_not_change_are_not_repeated(path):
    text = path.read_text(encoding="utf-8")
    assert '"r1", null]' in text


def test_saving_twice_gives_the_same_bytes(trace, path, tmp_path):
    trace.save(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_an_empty_run_can_be_saved(tmp_path):
    Trace(CONFIG).save(tmp_path / "empty.jsonl")
    assert Trace.load(tmp_path / "empty.jsonl") == Trace(CONFIG)


def test_long_names_in_a_long_queue_fit_in_a_line(trace, tmp_path):
    ids = tuple(f"{n}{'x' * 10_000}" for n in range(1000))
    trace.records[0] = replace(trace[0], held_back=ids)
    trace.requests |= {name: RequestInfo(name, 1, 1, 1) for name in ids}
    trace.save(tmp_path / "long.jsonl")
    assert Trace.load(tmp_path / "long.jsonl")[0].held_back == ids


def test_surrogates_and_line_breaks_in_names_survive(tmp_path):
    trace = Trace(CONFIG)
    for name in ("a\nb", "\ud800", "\u2028", ""):
        trace.requests[name] = RequestInfo(name, 1, 1, 1, prompt=name)
    trace.save(tmp_path / "names.jsonl")
    assert Trace.load(tmp_path / "names.jsonl") == trace


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{"step": {', "{", "no JSON"),
        ('"num_waiting": 0, ', "", "missing 1 required positional argument: 'num_waiting'"),
        ('"phase"', '"phrase"', "unexpected keyword argument 'phrase'"),
        ('"phase": "prefill"', '"phase": 7', "phase: 7 is not of type str"),
        ('"num_waiting": 0', '"num_waiting": "0"', "num_waiting: '0' is not of type int"),
        ('"num_waiting": 0', '"num_waiting": true', "num_waiting: True is not of type int"),
        ('"running": [', '"running": 5, "hidden": [', "running: 5 is not of type"),
        ('{"step": {"step": 3', '{"stop": {"step": 3', "neither a request nor a step"),
        ('"scheduled": [[', '"scheduled": [["surplus", 1, ', "positional arguments"),
        ('"scheduled": [[', '"scheduled": [5, [', "scheduled: (5, "),
        ('"scheduled"', '"sheduled"', "scheduled: None is no list of lists"),
        ('"kv_blocks": [', '"kv_blocks": [5, ', "kv_blocks: (5, "),
        ('"step": 3,', '"step": -1,', "step: -1 must be above 2, the step before it"),
        ('"step": 3,', '"step": 2,', "step: 2 must be above 2, the step before it"),
        ('"running": [', '"running": ["ghost", ', "'ghost': no request of this id stands before"),
        ('"running": [', '"running": [{}, ', "{}: no request of this id stands before"),
        ('{"step": {', '{"step": 5, "was": {', "step: 5 is no JSON object"),
    ],
)
def test_a_damaged_step_is_named_with_its_line(path, old, new, message):
    number = line_of_step(path, 3)
    damage(path, number, old, new)
    with pytest.raises(ValueError) as error:
        Trace.load(path)
    assert str(error.value).startswith(f"{path}, line {number}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "version 2, this kit reads version 1"),
        ("neuron_sched_lab.trace", "other", "no header of format"),
        ('"max_num_seqs": 4', '"max_num_seqs": "4"', "max_num_seqs: '4' is not of type int"),
        ('"config"', '"konfig"', "bad header (config: None is no JSON object)"),
        ('"config": {', '"config": 5, "was": {', "bad header (config: 5 is no JSON object)"),
        ('"version": 1', f'"version": {"[" * 100_000}', "brackets are nested too deep"),
        ('"version": 1', f'"version": {"9" * 5000}', "no JSON"),
    ],
)
def test_a_newer_or_damaged_header_is_named(path, old, new, message):
    damage(path, 1, old, new)
    with pytest.raises(ValueError) as error:
        Trace.load(path)
    assert f"{path}, line 1: " in str(error.value)
    assert message in str(error.value)


def test_blocks_that_refer_to_nothing_are_named(path):
    number = line_of_step(path, 1)
    damage(path, number, '"r0", [', '"r0", null], ["r1", [')
    with pytest.raises(ValueError, match=rf"line {number}: kv_blocks: 'r0' has no blocks"):
        Trace.load(path)


def test_requests_that_stand_twice_are_named(path):
    content = lines(path)
    path.write_text("\n".join([*content[:2], content[1], *content[2:]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 3: request_id: 'r0' stands twice"):
        Trace.load(path)


def test_answers_of_one_request_are_known_by_its_id(trace, path):
    child = replace(trace[-1], step=trace[-1].step + 1, waiting=("1_r0",))
    trace.records.append(child)
    trace.save(path)
    assert Trace.load(path)[-1] == child


@pytest.mark.parametrize("path", ["/nowhere/run.jsonl", ".", "", None, 5])
def test_what_is_no_file_is_named(path):
    with pytest.raises(ValueError) as error:
        Trace.load(path)
    assert str(error.value) == f"path: {path!r} is no file; give one that Trace.save() wrote"


def test_a_file_that_was_cut_off_names_its_last_line(path):
    content = path.read_text(encoding="utf-8")
    path.write_text(content[:-40], encoding="utf-8")
    with pytest.raises(ValueError, match=rf"line {len(lines(path))}: no JSON .* cut off"):
        Trace.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the file is empty"), (b"\x00\xff" * 50, "line 1: no JSON"), (b"[]", "no JSON object")],
)
def test_what_is_no_trace_is_named(tmp_path, content, message):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Trace.load(tmp_path / "x")


def test_a_failed_save_leaves_the_old_file(trace, path):
    before = path.read_bytes()
    trace.records.append("no record")
    with pytest.raises(AttributeError):
        trace.save(path)
    assert path.read_bytes() == before


@pytest.fixture
def events(trace, tmp_path):
    trace.to_perfetto(tmp_path / "run.json")
    return json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["traceEvents"]


def test_perfetto_has_a_slice_a_step_that_explains_it(trace, events):
    steps = [e for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert len(steps) == len(trace)
    for event, record in zip(steps, trace, strict=True):
        args = event["args"]
        assert args["phase"] == record.phase
        assert args["batch"] == [s.request_id for s in record.scheduled]
        assert args["num_padded_tokens"] == record.num_padded_tokens
        assert args["decode_batch_bucket"] == record.decode_batch_bucket
        assert args["hold_reason"] == record.hold_reason
        assert args["kv_blocks_used"] == record.kv_blocks_used


def test_perfetto_slices_of_a_track_follow_each_other(events):
    ends = {}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= ends.get(event["tid"], 0)
            ends[event["tid"]] = event["ts"] + event["dur"]


def test_perfetto_names_a_track_for_each_request(trace, events):
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert names == ["steps", *trace.requests]


def test_summary_as_a_table_and_as_a_frame(trace):
    summary = trace.summary()
    console = Console(width=100, record=True)
    console.print(summary)
    assert "FakeScheduler" in console.export_text()
    frame = summary.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.loc[0, "num_tokens"] == summary.num_tokens
    assert repr(summary) == str(summary)
