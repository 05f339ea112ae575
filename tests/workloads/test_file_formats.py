"""Readers of public trace formats, and the kit's own."""

import json

import pytest

from neuron_sched_lab.workloads import file_formats, file_rows
from neuron_sched_lab.workloads.generators import chat_turns, shared_prefix
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload
from tests.scheduler.traces import DATA, MISSING

AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 02:00:02.5+02:00,76,15
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
118.5,ChatGPT,417,276,693,API log
"""
BURSTGPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
1,7,0.5,ChatGPT,10,20,30,Conversation log
"""
MOONCAKE = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [46, 49]}
"""
SHAREGPT = json.dumps(
    [
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "How long is a token?"},
                {"from": "gpt", "value": "About four characters."},
                {"from": "human", "value": "Always?"},
            ],
        }
    ]
)
CUSTOM = '{"prompt": "What is the capital of India?", "output_tokens": 10}\n'


def write(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def lengths(workload):
    return [
        (round(r.arrival_seconds, 6), r.num_prompt_tokens, r.num_output_tokens) for r in workload
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE_2023, [(0, 374, 44), (4.314579, 396, 109)]),
        (AZURE_2024, [(0, 2162, 5), (0.99007, 2399, 6), (2.49007, 76, 15)]),
        (BURSTGPT, [(0, 472, 18), (40, 1087, 230), (113.5, 417, 276)]),
        (BURSTGPT_3, [(0, 10, 20)]),
        (MOONCAKE, [(0, 700, 3), (3, 1100, 52)]),
        (SHAREGPT, [(0, 5, 6)]),
        (CUSTOM, [(0, 7, 10)]),
        ("\ufeff" + AZURE_2023, [(0, 374, 44), (4.314579, 396, 109)]),
        (AZURE_2023.replace("\n", "\r\n"), [(0, 374, 44), (4.314579, 396, 109)]),
    ],
    ids=["azure23", "azure24", "burst", "burst3", "mooncake", "sharegpt", "custom", "bom", "crlf"],
)
def test_each_format_is_recognised_and_read(tmp_path, text, expected):
    assert lengths(Workload.read(write(tmp_path, text))) == expected


def test_requests_are_put_in_order_of_arrival(tmp_path):
    workload = Workload.read(write(tmp_path, MOONCAKE))
    assert [r.request_id for r in workload] == ["r1", "r0"]
    assert workload.requests[0].prefix_hash_ids == (46, 49)


def test_text_formats_take_a_tokenizer_and_a_rate(tmp_path):
    path = write(tmp_path, CUSTOM * 50)
    workload = Workload.read(path, count_tokens=lambda t: len(t.split()), requests_per_second=2)
    assert {r.num_prompt_tokens for r in workload} == {6}
    assert workload.requests[0].prompt == "What is the capital of India?"
    assert 1 < workload.requests_per_second < 4
    with pytest.raises(ValueError, match="holds arrival times; use scale"):
        Workload.read(write(tmp_path, AZURE_2023), requests_per_second=2)


def test_burstgpt_rows_of_one_model(tmp_path):
    workload = Workload.read(write(tmp_path, BURSTGPT), model="GPT-4")
    assert lengths(workload) == [(0, 1087, 230)]
    with pytest.raises(ValueError, match="model: azure files have no such column"):
        Workload.read(write(tmp_path, AZURE_2023), model="GPT-4")


def test_max_requests_stops_early(tmp_path):
    assert len(Workload.read(write(tmp_path, BURSTGPT), max_requests=2)) == 2


BAD_ROWS = [
    (AZURE_2023 + "yesterday,1,1\n", "line 4, column 'TIMESTAMP': 'yesterday' is no time"),
    (AZURE_2023 + "2023-13-45 18:15:46,1,1\n", "line 4, column 'TIMESTAMP'"),
    (AZURE_2023 + "2023-11-16 18:15:59,-3,1\n", "line 4, column 'ContextTokens': '-3' is no"),
    (AZURE_2023 + "2023-11-16 18:15:59,1\n", "line 4, column 'GeneratedTokens': '' is no"),
    (AZURE_2023 + "2023-11-16 18:15:59,1,1e3\n", "line 4, column 'GeneratedTokens': '1e3'"),
    (AZURE_2023 + f"2023-11-16 18:15:59,1,{'9' * 5000}\n", "line 4, column 'GeneratedTokens'"),
    (AZURE_2023 + "2023-11-16 18:15:59,1,\u0663\n", "line 4, column 'GeneratedTokens'"),
    (BURSTGPT + "9,ChatGPT,300,0,300,API log\n", "line 5, column 'Response tokens': '0' is no"),
    (BURSTGPT + "nan,ChatGPT,300,1,300,API log\n", "line 5, column 'Timestamp': 'nan' is no"),
    (MOONCAKE + "{broken\n", "line 3, column '(whole line)': no JSON"),
    (MOONCAKE + "[1]\n", "line 3, column '(whole line)': [1] is no JSON object"),
    (MOONCAKE + "[" * 200_000 + "\n", "line 3, column '(whole line)': no JSON"),
    (MOONCAKE + '{"timestamp": true, "input_length": 1}\n', "column 'timestamp': True is no"),
    (
        MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}\n',
        "line 3, column 'hash_ids': -1 in it is no whole number",
    ),
    (SHAREGPT[:-1] + ', {"conversations": [{"value": "alone"}]}]', "entry 2, column 'conversat"),
    (SHAREGPT[:-1] + ", 7]", "entry 2, column 'conversations': None holds no question"),
    (CUSTOM + '{"prompt": "", "output_tokens": 1}\n', "line 2, column 'prompt': '' is no text"),
    (CUSTOM + '{"prompt": "x"}\n', "line 2, column 'output_tokens': None is no token count"),
]


@pytest.mark.parametrize(("text", "message"), BAD_ROWS, ids=[m[:40] for _, m in BAD_ROWS])
def test_a_bad_row_is_an_error_or_skipped_and_counted(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ValueError) as error:
        Workload.read(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert len(str(error.value)) < 500
    skipped = Workload.read(path, on_bad_row="skip")
    assert skipped.num_skipped == 1
    assert len(skipped) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a,b,c\n1,2,3\n", "line 1: 'a,b,c' begins no known format; give file_format (command"),
        ("TIMESTAMP,ContextTokens\n", "line 1: no column 'GeneratedTokens', found"),
        ("[1, 2", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_file_of_no_known_format(tmp_path, text, message):
    with pytest.raises(ValueError) as error:
        Workload.read(write(tmp_path, text))
    assert message in str(error.value)


def test_a_line_without_end_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(file_rows, "MAX_LINE_LENGTH", 100)
    with pytest.raises(ValueError, match="line 4: longer than 100 characters"):
        Workload.read(write(tmp_path, AZURE_2023 + "x" * 101))
    monkeypatch.setattr(file_rows, "MAX_JSON_BYTES", 10)
    with pytest.raises(ValueError, match="a JSON array may have 10"):
        Workload.read(write(tmp_path, SHAREGPT))


def test_wrong_options_are_named(tmp_path):
    path = write(tmp_path, AZURE_2023)
    with pytest.raises(ValueError, match="on_bad_row: 'ignore' must be"):
        Workload.read(path, on_bad_row="ignore")
    with pytest.raises(ValueError, match="file_format: 'pickle' is none of azure"):
        Workload.read(path, "pickle")
    with pytest.raises(FileNotFoundError):
        Workload.read(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("workload", [chat_turns(2, 5), shared_prefix(2, 5), Workload("e", ())])
def test_what_is_written_is_read_back(tmp_path, workload):
    path = tmp_path / "w.jsonl"
    workload.write(path)
    assert Workload.read(path) == workload
    assert list(tmp_path.iterdir()) == [path]


def test_own_format_keeps_what_was_skipped_and_hostile_text(tmp_path):
    hostile = "<img onerror=alert(1)>\u202e\n\x00"
    request = WorkloadRequest(hostile, 0.1 + 0.2, 3, 4, prompt=hostile)
    workload = Workload(hostile, (request,), num_skipped=3, hash_block_tokens=16)
    path = tmp_path / "w.jsonl"
    workload.write(path)
    assert Workload.read(path) == workload


def test_own_format_refuses_another_version_and_unknown_keys(tmp_path):
    path = tmp_path / "w.jsonl"
    chat_turns(2, 2).write(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"version": 1', '"version": 9'), *lines[1:]]))
    with pytest.raises(ValueError, match="line 1: no header of format"):
        Workload.read(path)
    path.write_text(
        "\n".join([lines[0], lines[1].replace('"after"', '"afterwards"')[:-1] + ', "x": 1}'])
    )
    with pytest.raises(ValueError, match="line 2, column 'x': is no known key"):
        Workload.read(path)


@pytest.mark.parametrize(
    ("name", "num_requests", "longest"), [("code", 8819, 7437), ("conv", 19366, 14050)]
)
def test_the_azure_traces(name, num_requests, longest):
    path = DATA / f"azure_{name}.csv"
    if not path.is_file():
        pytest.skip(MISSING.format(name=path.stem))
    workload = Workload.read(path)
    assert len(workload) == num_requests
    assert max(r.num_prompt_tokens for r in workload) == longest
    assert workload.num_skipped == 0
    assert file_formats._detect(path) == "azure"
