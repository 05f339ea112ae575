"""The dashboard: its parts, its buttons' messages, its output without a browser."""

import json

import pytest

from neuron_sched_lab.trace.trace import Trace
from neuron_sched_lab.widgets import Controls, Dashboard
from neuron_sched_lab.widgets.dashboard import VIEWS
from tests.widgets.fake_lab import HOSTILE, FakeLab, make_lab


def press(dashboard, **message):
    dashboard.controls._receive(dashboard.controls, message, [])


def test_all_views_move_together():
    dashboard = Dashboard(make_lab())
    press(dashboard, type="step")
    assert {view.frame["step"] for view in dashboard.views.values()} == {1}
    assert dashboard.controls.frame["step"] == 1


def test_views_are_chosen_by_name():
    assert list(Dashboard(make_lab(), views=["kv", "board"]).views) == ["kv", "board"]
    with pytest.raises(ValueError, match="views: 'bored' is unknown; known: board, states"):
        Dashboard(make_lab(), views=["bored"])


def test_a_recorded_run_drives_every_view_exactly_as_live(tmp_path):
    lab = make_lab(with_inputs=True)
    live = Dashboard(lab)
    frames = []
    while lab.step():
        frames.append(json.dumps([view.frame for view in live.views.values()]))
    lab.trace.save(tmp_path / "run.jsonl")
    replay = Dashboard(Trace.load(tmp_path / "run.jsonl"))
    replay.views["timeline"]._run = live.views["timeline"]._run

    def comparable(text):
        """Without what came later: a live run does not know how long it will be."""
        frames = json.loads(text)
        for frame in frames:
            frame.pop("total", None)
        return frames

    for position, expected in enumerate(frames, start=1):
        replay.player.seek(position)
        got = json.dumps([view.frame for view in replay.views.values()])
        live_now, replayed = comparable(expected), comparable(got)
        assert replayed[1:] == live_now[1:], position
        assert replayed[0]["groups"] == live_now[0]["groups"], position


@pytest.mark.parametrize(
    ("message", "position"),
    [
        ({"type": "step"}, 6),
        ({"type": "back"}, 4),
        ({"type": "seek", "value": 2}, 2),
        ({"type": "end"}, 5),
        ({"type": "reset"}, 0),
        ({"type": "nonsense"}, 5),
    ],
)
def test_buttons_move_the_playhead(message, position):
    dashboard = Dashboard(make_lab)
    for _ in range(5):
        dashboard.player.step()
    press(dashboard, **message)
    assert dashboard.player.position == position


def test_buttons_add_and_abort():
    dashboard = Dashboard(FakeLab())
    press(dashboard, type="add", prompt="1 2 ", max_tokens=3)
    press(dashboard, type="add", num_tokens=40, max_tokens=3)
    assert dashboard.controls.frame["abortable"] == [[0, "r0"], [1, "r1"]]
    press(dashboard, type="abort", value=0)
    assert dashboard.controls.frame["abortable"] == [[1, "r1"]]
    assert dashboard.views["board"].frame["groups"]["aborted"][0] == 1
    assert dashboard.controls.frame["message"] == "aborted r0"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "seek", "value": "1; import os"},
        {"type": "seek", "value": None},
        {"type": "speed", "value": [1]},
        {"type": "abort", "value": 10**9},
        {"type": "abort", "value": -1},
        {"type": "add", "prompt": "x" * 100_001, "max_tokens": 1},
        {"type": "add", "prompt": "x", "max_tokens": 0},
        {"type": "add", "num_tokens": 1.5, "max_tokens": 1},
    ],
)
def test_a_bad_message_is_an_alert(message):
    dashboard = Dashboard(make_lab())
    press(dashboard, **message)
    assert dashboard.controls.frame["is_error"]
    assert dashboard.controls.frame["message"].startswith("ValueError: ")
    assert len(dashboard.player.trace.requests) == 6


def test_an_error_that_quotes_a_user_stays_short_text():
    dashboard = Dashboard(make_lab())
    dashboard.player.post(lambda: dashboard.player.abort("<b>" * 1000))
    assert len(dashboard.controls.frame["message"]) <= 500


def test_the_output_is_the_same_in_every_run_and_small():
    bundles = []
    for _ in "ab":
        lab = make_lab(with_inputs=True)
        lab.run()
        bundle = Dashboard(lab)._repr_mimebundle_()
        bundles.append((bundle["text/plain"], bundle["text/html"]))
    assert bundles[0] == bundles[1]
    plain, html = bundles[0]
    assert "step       18 of 18" in plain
    assert len(html) < 60_000
    assert html.startswith("<div><table>")
    assert "<script" not in html
    assert "<img src=x" not in html


def test_a_snapshot_keeps_its_moment():
    lab = make_lab()
    dashboard = Dashboard(lab)
    lab.step()
    snapshot = dashboard.snapshot()
    before = (repr(snapshot), snapshot._repr_html_())
    lab.run()
    assert (repr(snapshot), snapshot._repr_html_()) == before
    assert "step       1 of 1" in before[0]


def test_closing_stops_following():
    lab = make_lab()
    dashboard = Dashboard(lab)
    dashboard.close()
    assert dashboard.player.observers == []
    lab.step()


def test_controls_by_themselves():
    controls = Controls(make_lab())
    bundle, _ = controls._repr_mimebundle_()
    assert bundle["text/plain"] == "Controls: step 0 of 0"
    assert [label for _, label in controls.frame["abortable"]][:2] == ["r0", "r1"]
    assert HOSTILE not in json.dumps(controls.frame)


def test_refill_after_a_reset():
    lab = make_lab()
    dashboard = Dashboard(lab, refill=lambda lab: lab.add([7] * 3, request_id="again"))
    press(dashboard, type="reset")
    assert list(lab.trace.requests) == ["again"]


def test_reset_does_not_lose_the_requests_of_a_given_lab():
    lab = make_lab()
    dashboard = Dashboard(lab)
    press(dashboard, type="step")
    assert not dashboard.controls.frame["can_reset"]
    press(dashboard, type="reset")
    assert dashboard.controls.frame["is_error"]
    assert "give a function that makes a Lab" in dashboard.controls.frame["message"]
    assert (len(lab.trace), len(lab.trace.requests)) == (1, 6)
    lab.run()
    assert len(lab.trace) > 1


def test_a_lab_that_was_given_empty_is_emptied():
    lab = FakeLab()
    dashboard = Dashboard(lab)
    press(dashboard, type="add", num_tokens=40, max_tokens=3)
    press(dashboard, type="step")
    assert dashboard.controls.frame["can_reset"]
    press(dashboard, type="reset")
    assert not lab.trace.requests
    assert not dashboard.controls.frame["is_error"]


def test_every_static_file_is_used_and_needs_no_network():
    from neuron_sched_lab.widgets.views.view import STATIC

    sent = "".join(view._esm.default_value + view._css.default_value for view in VIEWS.values())
    sent += Controls._esm.default_value + Controls._css.default_value
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert text in sent, path.name
        for forbidden in (
            "http",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "@import",
        ):
            assert forbidden not in text.replace("http://www.w3.org/2000/svg", ""), path.name
