"""The index over a trace gives what a replay from the first step would give."""

from dataclasses import replace

import pytest

from neuron_sched_lab.trace.records import RequestInfo, Scheduled
from neuron_sched_lab.trace.trace import Trace
from neuron_sched_lab.widgets.history import History, Moment, Totals, state_of
from tests.widgets.fake_lab import CONFIG, EMPTY_RECORD, FakeLab, make_lab


@pytest.fixture
def trace():
    return make_lab().run()


def test_progress_at_every_position_is_that_of_a_replay(trace):
    history = History(trace)
    computed, generated = dict.fromkeys(trace.requests, 0), dict.fromkeys(trace.requests, 0)
    for position, record in enumerate(trace, start=1):
        for s in record.scheduled:
            computed[s.request_id] = s.num_computed_tokens + s.num_tokens
            generated[s.request_id] += len(s.new_token_ids)
        for i in trace.requests:
            expected = (computed[i], generated[i])
            assert history.progress(history.key(i), position) == expected


def test_text_at_every_position_is_that_of_a_replay(trace):
    history, text = History(trace), dict.fromkeys(trace.requests, "")
    for position, record in enumerate(trace, start=1):
        for request_id, piece in record.new_text:
            text[request_id] += piece
        for i, whole in text.items():
            assert history.text(history.key(i), position, 1000) == whole
            if len(whole) > 2:
                assert history.text(history.key(i), position, 2) == "…" + whole[-2:]


def test_totals_are_those_of_the_summary(trace):
    totals, summary = History(trace).totals(len(trace)), trace.summary()
    assert totals.num_tokens == summary.num_tokens
    assert totals.num_padded_tokens == summary.num_padded_tokens
    assert (totals.rows, totals.padded_rows) == summary.decode_rows
    assert dict(totals.dwell) == {
        "ACTIVE_PREFILL": summary.steps["prefill"],
        "ACTIVE_DECODE": summary.steps["decode"],
    }
    assert History(trace).totals(0) == Totals()


def test_a_history_that_grows_is_one_that_was_made_at_the_end():
    lab = make_lab()
    history = History(lab.trace)
    while lab.step() is not None:
        history.extend()
    whole = History(lab.trace)
    for position in range(len(lab.trace) + 1):
        assert history.totals(position) == whole.totals(position)
        assert history.new_shape(position) == whole.new_shape(position)
    assert (history.finished, history.aborted) == (whole.finished, whole.aborted)


def test_a_preempted_request_starts_again():
    trace = Trace(CONFIG, {"a": RequestInfo("a", 50, 9, 1)})
    ran = replace(EMPTY_RECORD, step=1, scheduled=(Scheduled("a", "prefill", 0, 50, 64, (7,)),))
    trace.records = [ran, replace(EMPTY_RECORD, step=2, preempted=("a",))]
    history = History(trace)
    assert [history.progress(0, p) for p in range(3)] == [(0, 0), (50, 1), (0, 1)]


def test_a_shape_is_new_once(trace):
    history = History(trace)
    new = [history.new_shape(p) for p in range(1, len(trace) + 1)]
    assert [shape for shape in new if shape] == list(
        dict.fromkeys(record.shape for record in trace)
    )


def test_requests_of_a_bare_scheduler_are_known_by_their_records():
    trace = make_lab().run()
    trace.requests.clear()
    history = History(trace)
    assert history.num_requests == 6
    assert history.info(0) is None
    assert Moment.of(history, len(trace)).is_idle


def test_a_moment_at_the_end_knows_what_came_since_the_last_step():
    lab = FakeLab()
    assert Moment.of(History(lab.trace), 0).is_idle
    lab.add([7] * 10, max_tokens=1, request_id="a")
    history = History(lab.trace)
    assert Moment.of(history, 0).arrivals == (0,)
    assert not Moment.of(history, 0).is_idle
    lab.step()
    lab.add([7] * 10, request_id="b")
    history.extend()
    assert Moment.of(history, 0).arrivals == ()  # the past knows nobody who came later
    now = Moment.of(history, 1)
    assert (now.arrivals, now.ended) == ((1,), {0})
    gone = Moment.of(history, 1, ("b",))
    assert (gone.arrivals, gone.pending_aborts, gone.is_idle) == ((), (1,), True)


def test_a_scheduler_without_states_shows_its_phases():
    assert state_of(replace(EMPTY_RECORD, state=None)) == "EMPTY"
    assert state_of(replace(EMPTY_RECORD, state=None, phase="mixed")) == "MIXED"
