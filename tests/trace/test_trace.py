"""Figures computed from records, by hand and from a Trace."""

from dataclasses import replace

from neuron_sched_lab.trace.board import LINE_HEADER, board_line, board_panel, printable
from neuron_sched_lab.trace.records import RequestInfo, Scheduled, StepRecord, TraceConfig
from neuron_sched_lab.trace.trace import Trace

CONFIG = TraceConfig("S", 4, 128, 512, 32, 10)
BLANK = StepRecord(
    step=0,
    state=None,
    cause=None,
    phase="empty",
    scheduled=(),
    waiting=(),
    held_back=(),
    hidden=(),
    running=(),
    num_waiting=0,
    num_held_back=0,
    hold_reason=None,
    held_head=None,
    decode_batch_bucket=None,
    kv_blocks_used=3,
    kv_blocks_total=10,
)


def prefill(step, request_id, before, tokens, padded, new=()):
    return replace(
        BLANK,
        step=step,
        phase="prefill",
        scheduled=(Scheduled(request_id, "prefill", before, tokens, padded, new),),
    )


def decode(step, ids, bucket):
    return replace(
        BLANK,
        step=step,
        phase="decode",
        scheduled=tuple(Scheduled(i, "decode", 9, 1, 1, (7,)) for i in ids),
        decode_batch_bucket=bucket,
    )


def make_trace():
    trace = Trace(CONFIG)
    trace.requests = {i: RequestInfo(i, 200, 3, 1) for i in ("a", "b")}
    trace.records = [
        prefill(1, "a", 0, 128, 128),
        prefill(2, "a", 128, 72, 128, (5,)),
        prefill(3, "b", 0, 100, 128, (6,)),
        decode(4, ["a", "b"], 2),
        replace(BLANK, step=5),
        decode(6, ["a"], 2),
    ]
    return trace


def test_summary_figures():
    summary = make_trace().summary()
    assert summary.steps == {"prefill": 3, "decode": 2, "mixed": 0, "empty": 1}
    assert summary.num_tokens == 128 + 72 + 100 + 2 + 1
    assert summary.num_padded_tokens == 3 * 128 + 2 + 2
    assert summary.padded_share == 1 - 303 / 388
    assert summary.decode_rows == (3, 4)
    assert summary.decode_fill == 0.75
    assert summary.shapes == (("decode", 2), ("prefill", 128))
    assert summary.ttft_steps == {"a": 2, "b": 3}
    assert summary.itl_steps == (2, 1, 2)


def test_tokens_are_collected_in_order():
    assert make_trace().tokens() == {"a": (5, 7, 7), "b": (6, 7)}


def test_an_empty_trace_has_a_summary():
    summary = Trace(CONFIG).summary()
    assert summary.padded_share == 0
    assert summary.decode_fill == 0
    assert "no token" in str(summary)


def test_a_mixed_batch_has_a_shape_of_its_own():
    record = replace(
        BLANK,
        phase="mixed",
        scheduled=(Scheduled("a", "prefill", 0, 50, 50), Scheduled("b", "decode", 9, 1, 1)),
    )
    assert record.shape == ("mixed", 51, 2)


def test_a_line_says_what_ran_and_why_the_next_waits():
    record = replace(
        prefill(7, "a", 128, 72, 128),
        state="ACTIVE_PREFILL",
        held_back=("b", "c", "d"),
        num_held_back=3,
        hold_reason="prefill in progress",
        hidden=("x",),
    )
    line = board_line(record)
    for part in ("ACTIVE_PREFILL", "prefill a [128:200]", "72 -> 128", "b +2", "in progress"):
        assert part in line
    assert len(line) == len(LINE_HEADER)


def test_a_panel_shows_progress_within_the_prompt():
    trace = make_trace()
    panel = board_panel(trace[1], trace.requests)
    assert "prefill to 200 of 200, 72 tokens + 56 padding" in panel
    assert "3 of 10 used" in panel


def test_text_of_users_cannot_leave_its_line():
    assert printable("a\nb\x1b[31m", 50) == "a\\x0ab\\x1b[31m"
    assert printable("x" * 50) == "x" * 11 + "…"
    assert "\u202e" not in printable("\u202eabc")
