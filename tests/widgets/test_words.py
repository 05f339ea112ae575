"""Text on the screen."""

import pytest

from neuron_sched_lab.widgets.words import MAX_LABEL, count, label, listed, percent, visible
from tests.widgets.fake_lab import HOSTILE


def test_a_short_name_is_shown_as_it_is():
    assert label("r0 Ärger <b>") == "r0 Ärger <b>"


def test_of_a_long_name_both_ends_are_shown():
    shown = label("request-" + "x" * 100 + "-the-17th")
    assert shown.startswith("request-")
    assert shown.endswith("the-17th")
    assert len(shown) == MAX_LABEL


@pytest.mark.parametrize("text", [HOSTILE, "\x00" * 40, "\u202e" * 40, "é" * MAX_LABEL, ""])
def test_a_label_is_short_and_visible(text):
    assert len(label(text)) <= MAX_LABEL
    assert label(text).isprintable()


def test_what_cannot_be_seen_is_spelled_out():
    assert visible("a\nb\t\u202e\x1b") == "a⏎b\\x09\\u202e\\x1b"


def test_counts_lists_and_shares():
    assert (count(1, "row"), count(2000, "row")) == ("1 row", "2,000 rows")
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
    assert listed([]) == "none"
    assert (percent(1, 8), percent(1, 0)) == ("12.5 %", "-")
