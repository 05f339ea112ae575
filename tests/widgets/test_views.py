"""What each view tells the browser, and what it shows without one."""

import base64
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

from neuron_sched_lab.trace.records import Scheduled
from neuron_sched_lab.trace.trace import Trace
from neuron_sched_lab.widgets import InputsView, KVMap, Player, StateMachine, TextView, Timeline
from neuron_sched_lab.widgets.dashboard import VIEWS
from neuron_sched_lab.widgets.history import History, Moment
from neuron_sched_lab.widgets.views.inputs_view import NO_STEP
from neuron_sched_lab.widgets.views.kv_map import FREE, SHARED, get_cells, get_ranges, get_usage
from neuron_sched_lab.widgets.views.padding_view import get_window
from neuron_sched_lab.widgets.views.queue_board import MAX_CHIPS, WHY, QueueBoard, group_requests
from neuron_sched_lab.widgets.views.state_machine import get_arrow
from neuron_sched_lab.widgets.views.view import MAX_TABLE_ROWS
from tests.widgets.fake_lab import CONFIG, EMPTY_RECORD, HOSTILE, FakeLab, make_lab

EVERY_VIEW = pytest.mark.parametrize("view_class", VIEWS.values(), ids=VIEWS)


def moment_of(*records, config=CONFIG, requests=None):
    trace = Trace(config, dict(requests or {}), list(records))
    return Moment.of(History(trace), len(records))


def run_views(view_class, *, with_inputs=True):
    """A view at each position of a run, from before the first step to after the last."""
    view = view_class(make_lab(with_inputs=with_inputs))
    yield view
    while view.player.lab.step():
        yield view


# Every view, at every moment


@EVERY_VIEW
def test_a_frame_is_plain_data_and_the_same_in_every_run(view_class):
    first, second = (
        [json.dumps(view.frame, sort_keys=True) for view in run_views(view_class)] for _ in "ab"
    )
    assert first == second
    assert len(first) > 10


@EVERY_VIEW
def test_without_a_browser_there_is_a_picture_and_a_table(view_class):
    for view in run_views(view_class):
        html = view.static_html()
        for data in re.findall(r"base64,([A-Za-z0-9+/=]+)", html):
            ET.fromstring(base64.b64decode(data))  # noqa: S314  (our own; is it well formed?)
        assert html.count("<img") == html.count('alt="')
        assert "<table>" in html or view.make_alt(view.player.moment()) in html
    assert len(html) < 30_000


@EVERY_VIEW
def test_the_static_output_has_no_trace_of_this_run(view_class):
    bundles = []
    for _ in "ab":
        *_, view = run_views(view_class)
        bundle, _ = view._repr_mimebundle_()
        bundles.append((bundle["text/plain"], bundle["text/html"]))
        assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundles[0] == bundles[1]
    assert "0x" not in bundles[0][0]


@EVERY_VIEW
def test_the_table_is_made_only_while_it_is_open(view_class):
    *_, view = run_views(view_class)
    assert view.table == []
    view.table_open = True
    if view_class is not InputsView:
        assert len(view.table) > 1
    assert len(view.table) <= MAX_TABLE_ROWS + 1
    assert {len(row) for row in view.table} == {len(view.table[0])}
    assert all(isinstance(cell, str) for row in view.table for cell in row)


@EVERY_VIEW
def test_a_hostile_name_is_text_everywhere(view_class):
    for view in run_views(view_class):
        view.table_open = True
        html = view.static_html()
        assert "<img src=x" not in html
        for data in re.findall(r"base64,([A-Za-z0-9+/=]+)", html):
            root = ET.fromstring(base64.b64decode(data))  # noqa: S314  (our own)
            tags = {element.tag.rpartition("}")[2] for element in root.iter()}
            assert tags <= {"svg", "defs", "pattern", "rect", "text", "path"}
            assert not any("onerror" in element.attrib for element in root.iter())
        sent = json.dumps([view.frame, view.table, view.alt], ensure_ascii=False)
        assert "x" * 100 not in sent  # cut
        assert "\u202e" not in sent + html + repr(view)  # spelled out


@pytest.mark.parametrize("name", ["board", "padding", "kv", "timeline", "text"])
def test_a_hostile_name_is_there_at_all(name):
    view = VIEWS[name](make_lab())
    while HOSTILE not in view.player.lab.trace.tokens() or not view.player.lab.text[HOSTILE]:
        view.player.lab.step()
    view.table_open = True
    if name != "padding":  # which names nobody
        assert any("<img src=x onerror=" in cell for row in view.table for cell in row)


@EVERY_VIEW
def test_an_empty_trace_and_an_empty_step_can_be_shown(view_class):
    for trace in (Trace(CONFIG), Trace(CONFIG, {}, [EMPTY_RECORD])):
        player = Player(trace)
        player.step()
        view = view_class(player)
        assert view.alt
        assert view.static_html()


@EVERY_VIEW
def test_a_plain_vllm_scheduler_can_be_shown(view_class):
    config = replace(
        CONFIG, num_batched_tokens_buckets=None, num_seqs_buckets=None, max_kv_concurrent=None
    )
    record = replace(
        EMPTY_RECORD,
        step=1,
        state=None,
        phase="mixed",
        scheduled=(Scheduled("a", "prefill", 0, 50, 50), Scheduled("b", "decode", 9, 1, 1, (7,))),
        running=("a", "b", "c"),
        waiting=("d",),
        num_waiting=1,
    )
    player = Player(Trace(config, {}, [record]))
    player.step()
    view = view_class(player)
    view.table_open = True
    assert view.static_html()


@EVERY_VIEW
def test_a_view_that_no_page_shows_costs_nothing(view_class):
    view = view_class(make_lab())
    before = view.frame
    view._receive(view, {"type": "hello"}, [])
    view._receive(view, {"type": "bye"}, [])
    view.player.step()
    assert view.frame == before
    view._receive(view, {"type": "hello"}, [])
    assert view.frame["step"] == 1


@EVERY_VIEW
def test_a_closed_view_is_no_longer_drawn(view_class):
    view = view_class(make_lab())
    player = view.player
    view.close()
    assert player.observers == []


# Queue board


def test_each_request_stands_in_one_column():
    for view in run_views(QueueBoard):
        moment = view.player.moment()
        placed = [k for group in group_requests(moment).values() for k in group.keys]
        assert sorted(placed) == list(range(6))


def test_the_columns_of_one_step():
    record = replace(
        EMPTY_RECORD,
        phase="prefill",
        scheduled=(Scheduled("p", "prefill", 0, 9, 32),),
        running=("h", "s", "p", "f"),
        hidden=("h",),
        held_back=("b", "c"),
        num_held_back=7,
        waiting=("w",),
        num_waiting=1,
        finished=(("f", "stop"),),
        aborted=("a",),
        hold_reason="at capacity",
        held_head="b",
    )
    moment = moment_of(record)
    key = moment.history.key
    groups = group_requests(moment)
    placed = {name: [moment.history.request_id(k) for k in g.keys] for name, g in groups.items()}
    assert placed == {
        "waiting": ["w"],
        "held_back": ["b", "c"],
        "prefill": ["p"],
        "decode": [],
        "stalled": ["s"],
        "hidden": ["h"],
        "finished": ["f"],
        "aborted": ["a"],
    }
    assert groups["held_back"].total == 7
    assert key("b") in groups["held_back"].keys


def test_a_long_queue_is_cut_and_counted():
    lab = FakeLab()
    for _ in range(200):
        lab.add([7] * 10)
    lab.step()
    total, chips = QueueBoard(lab).frame["groups"]["held_back"]
    assert (total, len(chips)) == (199, MAX_CHIPS)


def test_the_reason_why_the_head_waits():
    view = QueueBoard(make_lab())
    for _ in range(3):
        view.player.lab.step()
    assert view.frame["hold"] == ["r2", "prefill in progress", "another prompt is not yet done"]
    assert "r2 is not admitted: prefill in progress." in view.alt
    while view.frame["hold"][1] != "at capacity":
        view.player.lab.step()
    assert view.frame["hold"][2] == "all 4 seats are taken"


def test_every_reason_of_the_scheduler_is_explained():
    from neuron_sched_lab.scheduler.holdback import HoldReason

    assert {reason.value for reason in HoldReason} == set(WHY)


def test_a_chip_has_its_progress():
    view = QueueBoard(make_lab())
    for _ in range(3):
        view.player.lab.step()
    _, label, computed, prompt, generated, limit = view.frame["groups"]["prefill"][1][0]
    assert (label, computed, prompt, generated, limit) == ("r1", 256, 300, 0, 5)


# State machine


def test_every_arrow_of_a_run():
    arrows = [get_arrow(view.player.moment())[:2] for view in run_views(StateMachine)]
    assert arrows[0] == ("IDLE", "IDLE")
    assert arrows[1] == ("IDLE", "ACTIVE_PREFILL")
    assert ("ACTIVE_PREFILL", "ACTIVE_DECODE") in arrows
    assert arrows[-1] == ("ACTIVE_DECODE", "IDLE")
    for (_, after), (before, _) in pairwise(arrows[:-1]):
        assert before == after


def test_the_cause_is_the_schedulers():
    view = StateMachine(make_lab())
    view.player.step()
    assert view.frame["cause"] == "from IDLE"
    assert "because: from IDLE" in view.alt


def test_the_last_abort_leads_to_idle():
    lab = FakeLab()
    lab.add([7] * 10, request_id="only")
    view = StateMachine(lab)
    lab.step()
    lab.abort("only")
    assert (view.frame["after"], view.frame["cause"]) == ("IDLE", "last request aborted")


def test_dwell_times_count_steps():
    *_, view = run_views(StateMachine)
    assert view.frame["dwell"] == {"ACTIVE_PREFILL": 8, "ACTIVE_DECODE": 10}


def test_a_scheduler_without_states_shows_phases():
    records = [replace(EMPTY_RECORD, step=n, state=None, phase=p, running=("a",))
               for n, p in ((1, "prefill"), (2, "mixed"))]  # fmt: skip
    assert get_arrow(moment_of(*records)) == (
        "PREFILL",
        "MIXED",
        "prefills and decodes share the step",
    )


# Padding


def test_bars_are_tokens_of_prefills_and_rows_of_decodes():
    lab = make_lab()
    lab.run()
    bars = get_window(Moment.of(History(lab.trace), len(lab.trace)))
    assert bars[0] == (1, "prefill", 40, 64)
    assert bars[-1][1] == "decode"
    for (_, phase, actual, padded), record in zip(bars, lab.trace, strict=True):
        assert actual == record.num_tokens if phase == "prefill" else len(record.scheduled)
        assert padded == record.num_padded_tokens


# KV map


def blocks(**held):
    return replace(
        EMPTY_RECORD,
        step=1,
        running=tuple(held),
        kv_blocks=tuple(held.items()),
        kv_blocks_used=len({b for ids in held.values() for b in ids}),
    )


def test_cells_are_owned_shared_or_free():
    moment = moment_of(blocks(a=(1, 2, 3), b=(1, 2, 9)))
    cells, group = get_cells(moment)
    assert (len(cells), group) == (64, 1)
    assert list(cells[:9]) == [SHARED, SHARED, 0, *[FREE] * 5, 1]
    usage = get_usage(moment)
    assert (usage.used, usage.shared, usage.worst_case, usage.num_running) == (4, 2, 16, 2)


def test_a_huge_cache_has_several_blocks_in_a_cell():
    config = replace(CONFIG, kv_blocks_total=100_000)
    cells, group = get_cells(moment_of(blocks(a=(1, 99_999)), config=config))
    assert group == 25
    assert len(cells) == 4000
    assert (cells[0], cells[-1], cells[1]) == (0, 0, FREE)


def test_the_next_admission_and_what_it_needs():
    view = KVMap(make_lab())
    view.player.lab.step()
    assert view.frame["admission_words"] == (
        "r1 needs 10 blocks for its prompt, 10 with its answer; 62 are free."
    )
    assert view.frame["bound_words"] == "Bound: 1 of 4 requests that may all grow to 16 blocks."
    view.player.play()
    assert view.frame["admission_words"] == "Nobody waits to be admitted."


def test_block_ids_as_ranges():
    assert get_ranges((3, 4, 5, 9, 7, 8)) == "3-5, 9, 7-8"
    assert get_ranges(tuple(range(0, 100, 2)), limit=2) == "0, 2, …"


# Timeline


class Page:
    """What a page knows of a Timeline, by the rules of timeline.js."""

    def __init__(self, view):
        self.view, self.rows, self.lanes, self.run = view, [], [], -1
        self.messages = 0
        view.send = self.take
        view._receive(view, {"type": "hello"}, [])
        self.ask()

    def ask(self):
        content = {"type": "ask", "have": len(self.rows), "run": self.run}
        self.view._receive(self.view, content, [])

    def take(self, message):
        self.messages += 1
        if message["run"] != self.run:
            self.rows, self.lanes, self.run = [], [], message["run"]
        assert message["start"] <= len(self.rows)
        assert message["first_lane"] <= len(self.lanes)
        self.rows[message["start"] :] = message["rows"]
        self.lanes[message["first_lane"] :] = message["lanes"]


def test_a_page_has_every_step_once():
    lab = make_lab()
    lab.step()
    page = Page(Timeline(lab))
    while lab.step():
        assert [row[0] for row in page.rows] == list(range(1, len(lab.trace) + 1))
    assert page.messages == len(lab.trace)
    assert len(page.lanes) == 6


def test_a_page_that_comes_late_or_twice_has_the_same():
    lab = make_lab()
    view = Timeline(lab)
    first = Page(view)
    lab.step()
    second = Page(view)
    assert (second.rows, second.lanes) == (first.rows, first.lanes)


def test_after_a_reset_a_page_starts_again():
    lab = make_lab()
    view = Timeline(lab)
    page = Page(view)
    lab.run()
    lab.reset()
    lab.add([7] * 5, request_id="new")
    lab.step()
    assert len(page.rows) == 1
    assert [lane[0] for lane in page.lanes] == ["new"]


@pytest.mark.parametrize("have", [-1, 10**9, "x", None, True, 1.0])
def test_a_page_that_asks_nonsense_gets_everything(have):
    lab = make_lab()
    lab.run()
    view, sent = Timeline(lab), []
    view.send = sent.append
    view._receive(view, {"type": "ask", "have": have, "run": 1}, [])
    assert [row[0] for message in sent for row in message["rows"]] == list(range(1, 19))


# Inputs and text


def test_padding_of_the_inputs_is_marked():
    view = InputsView(make_lab(with_inputs=True))
    view.player.step()
    assert (view.frame["size"], view.frame["padding"]) == (64, 24)
    view.table_open = True
    assert [row[4] for row in view.table[1:]] == [""] * 40 + ["padding"] * 24


def test_without_inputs_the_view_says_so():
    view = InputsView(make_lab())
    assert view.frame["missing"] == view.alt == NO_STEP
    view.player.step()
    assert "does not show its inputs" in view.frame["missing"]


def test_text_is_followed_and_goes_back():
    view = TextView(make_lab())
    view.player.play()
    end = {line[1]: line[4] for line in view.frame["lines"]}
    assert end["r0"] == view.player.lab.text["r0"]
    view.player.seek(1)
    assert view.frame["lines"] == [[0, "r0", "P", "prefill", "a"]]


def test_text_of_many_running_requests_says_that_they_run():
    config = replace(CONFIG, max_num_seqs=40, num_seqs_buckets=(40,))
    lab = FakeLab(config)
    for _ in range(40):
        lab.add([7] * 10, max_tokens=90)
    view = TextView(lab)
    for _ in range(45):
        lab.step()
    assert {line[3] for line in view.frame["lines"]} == {"decode"}
