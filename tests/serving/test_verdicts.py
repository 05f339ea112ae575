"""The scenarios' verdicts can fail: each fault that they look for is found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.serving.client import End, Job, Outcome
from tests.serving.scenarios import (
    Report,
    _check_aborts,
    _expect_refusal,
    get_verified_prompts,
    make_jobs,
)

RIGHT = {("ask", 3): "123"}


def end(how: End, text: str = "123", name: str = "a") -> Outcome:
    return Outcome(Job(name, {"prompt": "ask", "max_tokens": 3}), how, text)


@pytest.mark.parametrize(
    ("outcome", "num_faults"),
    [
        (end(End.ANSWER), 0),
        (end(End.ANSWER, "12"), 1),
        (end(End.ANSWER, "124"), 1),
        (end(End.HUNG_UP, "12"), 0),
        (end(End.HUNG_UP, "13"), 1),
        (end(End.ERROR, ""), 0),
        (end(End.ERROR, "1234"), 1),
    ],
)
def test_texts_are_compared_as_far_as_they_were_read(outcome, num_faults):
    report = Report("")
    report.compare([outcome], RIGHT)
    assert len(report.faults) == report.numbers["differing texts"] == num_faults


def test_a_lost_request_is_a_fault():
    report = Report("")
    report.count_ends([end(End.ANSWER), end(End.LOST)])
    assert report.faults == ["1 requests are lost"]


def test_an_end_that_was_not_expected_is_a_fault():
    report = Report("")
    report.expect([end(End.ANSWER), end(End.ERROR)], End.ANSWER)
    assert report.faults == ["a: client-visible error "]


class Log:
    """Stands in for a server: what its log says."""

    def __init__(self, received: set[str], aborted: set[str]) -> None:
        self.ids = {"Received request": received, "Aborted request(s)": aborted}

    def get_ids_in_log(self, words: str) -> set[str]:
        return self.ids[words]


@pytest.mark.parametrize(
    ("received", "aborted", "num_finished", "is_fault"),
    [
        ({"a", "b"}, {"b"}, 1, False),
        ({"a", "b"}, {"b"}, 2, False),  # answered and hung up at once
        ({"a"}, set(), 1, False),  # b hung up before it arrived
        ({"a", "b"}, set(), 1, True),  # b is neither answered nor aborted
        ({"a", "b"}, {"b"}, 3, True),
        ({"b"}, {"b"}, 1, True),  # a has an answer that nobody gave
    ],
)
def test_every_request_that_arrived_is_answered_or_aborted(
    received, aborted, num_finished, is_fault
):
    report = Report("")
    outcomes = [end(End.ANSWER, name="a"), end(End.HUNG_UP, "", name="b")]
    _check_aborts(report, Log(received, aborted), outcomes, num_finished)
    assert bool(report.faults) == is_fault


@pytest.mark.parametrize(
    ("status", "text", "is_fault"),
    [
        (400, '{"error": {}}', False),
        (200, 'data: {"error": {"message": "no", "code": 400}}', False),
        (200, 'data: {"choices": []}', True),
        (200, 'data: {"error": {"message": "oh", "code": 500}}', True),
        (500, '{"error": {}}', True),
        (400, "", True),
    ],
)
def test_a_bad_request_must_be_refused_and_not_break_the_server(status, text, is_fault):
    report = Report("")
    _expect_refusal(report, Counter(), "it", status, text)
    assert bool(report.faults) == is_fault


def test_hang_ups_are_drawn_from_the_seed():
    prompts = get_verified_prompts(300, seed=0)
    jobs = make_jobs("a", prompts, seed=1, hang_ups=1 / 3)
    assert jobs == make_jobs("a", prompts, seed=1, hang_ups=1 / 3)
    assert jobs != make_jobs("a", prompts, seed=2, hang_ups=1 / 3)
    assert 80 <= sum(job.hang_up_after is not None for job in jobs) <= 120
