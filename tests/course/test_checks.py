"""The self-checks catch what learners get wrong, and name the step and the rule."""

import re

import numpy as np
import pytest
from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.course.checks import (
    CheckResult,
    NotSolvedError,
    ValueRule,
    check_function,
    check_prediction,
    check_scheduler,
    check_value,
    compare_functions,
    compare_schedulers,
    guard,
    pick,
)
from neuron_sched_lab.course.checks.result import NOT_RIGHT, NOT_SOLVED, SOLVED
from neuron_sched_lab.course.checks.scenario import draw_scenario
from neuron_sched_lab.runner.inputs import pad_prefill
from neuron_sched_lab.scheduler import (
    HoldbackScheduler,
    HoldReason,
    KVAdmissionScheduler,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SchedulerState,
    SeparatedScheduler,
)
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count

CLASSES = [
    HoldbackScheduler,
    SeparatedScheduler,
    PaddedScheduler,
    KVAdmissionScheduler,
    NeuronScheduler,
    NeuronAsyncScheduler,
]


@pytest.fixture(autouse=True)
def learner(monkeypatch):
    """A learner's kernel, whatever this process was started with."""
    monkeypatch.delenv("NSL_REQUIRE_SOLVED", raising=False)


# What learners write


class Holdback(Scheduler):
    """A right answer to lesson 2, in the learner's way: requests are moved one by one."""

    max_prefills_per_batch = 1

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.holdback_queue = create_request_queue(self.policy)

    def can_schedule(self, request):
        at_capacity = len(self.running) >= self.scheduler_config.max_num_seqs
        prefilling = any(r.num_computed_tokens < r.num_prompt_tokens for r in self.running)
        return not (at_capacity or prefilling or len(self.waiting) >= self.max_prefills_per_batch)

    def set_aside(self):
        while self.waiting:
            self.holdback_queue.add_request(self.waiting.pop_request())

    def admit(self):
        while self.holdback_queue and self.can_schedule(self.holdback_queue.peek_request()):
            self.waiting.add_request(self.holdback_queue.pop_request())

    def restore(self):
        while self.holdback_queue:
            self.waiting.add_request(self.holdback_queue.pop_request())

    def schedule(self, throttle_prefills=False):
        self.set_aside()
        self.admit()
        output = super().schedule(throttle_prefills)
        self.restore()
        return output


class LifoRestore(Holdback):
    def restore(self):
        while self.holdback_queue:
            self.waiting.prepend_request(self.holdback_queue.pop_request())


class OverCapacity(Holdback):
    def can_schedule(self, request):
        prefilling = any(r.num_computed_tokens < r.num_prompt_tokens for r in self.running)
        at_capacity = len(self.running) > self.scheduler_config.max_num_seqs
        return not (at_capacity or prefilling or self.waiting)


class TwoAtOnce(Holdback):
    max_prefills_per_batch = 2


class ForgetsToRestore(Holdback):
    def restore(self):
        """The queue is drained at the next step anyway, is it not?"""


class NeverStops(Holdback):
    def admit(self):
        while self.holdback_queue:
            if self.can_schedule(self.holdback_queue.peek_request()):
                self.waiting.add_request(self.holdback_queue.pop_request())


class Misspelt(Holdback):
    def set_aside(self):
        while self.waiting:
            self.holdback_queue.push(self.waiting.pop_request())


class Skeleton(Holdback):
    def can_schedule(self, request):
        raise NotImplementedError


class HidesPrefills(HoldbackScheduler):
    def _schedule_visible(self):
        hidden = []
        if prefills := self._get_running_prefills():
            hidden = prefills
            self.running = [r for r in self.running if not self._is_prefill_request(r)]
        elif self.waiting:
            hidden, self.running = self.running, []
        output = super()._schedule_visible()
        self.running = hidden + self.running
        return output


class MixesPhases(HoldbackScheduler):
    """Lesson 3 not begun."""


class NewestFirst(HoldbackScheduler):
    """The seed's order of restoring (hole B5)."""

    def _schedule_visible(self):
        hidden = []
        if self._get_running_prefills():
            hidden = [r for r in self.running if not self._is_prefill_request(r)]
            self.running = self._get_running_prefills()
        elif self.waiting:
            hidden, self.running = self.running, []
        output = super()._schedule_visible()
        self.running = self.running + hidden
        return output


class PadsTheAccounts(PaddedScheduler):
    def _update_after_schedule(self, scheduler_output):
        for new in scheduler_output.scheduled_new_reqs:
            actual = scheduler_output.num_scheduled_tokens[new.req_id]
            padded = self._calculate_padded_count(actual)
            scheduler_output.num_scheduled_tokens[new.req_id] = padded
        super()._update_after_schedule(scheduler_output)


class PadsTheOutput(PaddedScheduler):
    def _apply_padding_and_log_stats(self, scheduler_output):
        output = super()._apply_padding_and_log_stats(scheduler_output)
        output.num_scheduled_tokens = dict(output.num_scheduled_tokens_padded)
        return output


class PadsNothing(SeparatedScheduler):
    pass


class PadsDecodes(PaddedScheduler):
    def _apply_padding_and_log_stats(self, scheduler_output):
        output = super()._apply_padding_and_log_stats(scheduler_output)
        output.num_scheduled_tokens_padded = {
            r: self._calculate_padded_count(n) for r, n in output.num_scheduled_tokens.items()
        }
        return output


class NextBucket(PaddedScheduler):
    """Off by one at a bucket's edge."""

    def _calculate_padded_count(self, token_count):
        buckets = self.num_batched_tokens_buckets
        return next((b for b in buckets if b > token_count), buckets[-1])


class LooseBound(KVAdmissionScheduler):
    def can_schedule(self, request):
        if not super(KVAdmissionScheduler, self).can_schedule(request):
            return False
        return not self.num_seats_taken > self._max_kv_concurrent


class PostIncrementState(NeuronScheduler):
    def _update_state(self, scheduler_output):
        super()._update_state(scheduler_output)
        requests = [self.requests[r] for r in scheduler_output.num_scheduled_tokens]
        if requests:
            prefill = any(r.num_computed_tokens < r.num_prompt_tokens for r in requests)
            self._state = SchedulerState.ACTIVE_PREFILL if prefill else SchedulerState.ACTIVE_DECODE


class ForgetsToReturn(NeuronScheduler):
    def update_from_output(self, scheduler_output, model_runner_output):
        super().update_from_output(scheduler_output, model_runner_output)


class ForgetsWhoWasAborted(NeuronScheduler):
    def finish_requests(self, request_ids, finished_status):
        super().finish_requests(request_ids, finished_status)


class NeverIdle(NeuronScheduler):
    def _update_state(self, scheduler_output):
        super()._update_state(scheduler_output)
        if self._state is SchedulerState.IDLE:
            self._state = SchedulerState.ACTIVE_DECODE


class IdleWheneverEmpty(NeuronScheduler):
    def _update_state(self, scheduler_output):
        super()._update_state(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            self._state = SchedulerState.IDLE


class AsksTheCacheFirst(KVAdmissionScheduler):
    def can_schedule(self, request):
        if not self._kv_admits(request):
            return self._hold(HoldReason.KV_SATURATED)
        return super().can_schedule(request)


class PadsNoTokensOfAnAnswer(PaddedScheduler):
    """A request that comes back reads its prompt; what it had written is no prompt, is it?"""

    def _apply_padding_and_log_stats(self, scheduler_output):
        output = super()._apply_padding_and_log_stats(scheduler_output)
        cached = output.scheduled_cached_reqs
        for r, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if num_computed_tokens >= self.requests[r].num_prompt_tokens:
                output.num_scheduled_tokens_padded[r] = output.num_scheduled_tokens[r]
        return output


WRONG_SCHEDULERS = [
    (LifoRestore, HoldbackScheduler, {}, "left the waiting queue as r2 r1,", "FIFO"),
    (OverCapacity, HoldbackScheduler, {}, "the running queue was at capacity", "seats"),
    (TwoAtOnce, HoldbackScheduler, {}, "already started in this step", "one new request"),
    (ForgetsToRestore, HoldbackScheduler, {}, "left the waiting queue as (nobody)", "nothing lost"),
    (HidesPrefills, SeparatedScheduler, {}, "you hid the prefill of r0", "prefill first"),
    (MixesPhases, SeparatedScheduler, {}, "hid it behind the prefill of", "pure batch"),
    (NewestFirst, SeparatedScheduler, {}, "left the running queue as", "age order"),
    (PadsTheAccounts, PaddedScheduler, {}, "you scheduled", "true accounts"),
    (PadsTheOutput, PaddedScheduler, {}, "you scheduled", "true accounts"),
    (PadsNothing, PaddedScheduler, {}, "no num_scheduled_tokens_padded", "padded is a bucket"),
    (PadsDecodes, PaddedScheduler, {}, "you padded r", "padded is a bucket"),
    (NextBucket, PaddedScheduler, {}, "you padded r", "padded is a bucket"),
    (
        LooseBound,
        KVAdmissionScheduler,
        {"kv_pressure": True},
        "the packaged class held it back because the KV cache was saturated",
        "KV bound",
    ),
    (
        PostIncrementState,
        NeuronScheduler,
        {},
        "your state is ACTIVE_DECODE, the packaged class's is ACTIVE_PREFILL",
        "true state",
    ),
    (
        ForgetsToReturn,
        NeuronScheduler,
        {},
        "your update_from_output() returned None, the packaged class's {0: [('r0', [13], None)]}",
        "handed on",
    ),
    (
        ForgetsWhoWasAborted,
        NeuronScheduler,
        {},
        "your finish_requests() returned None, the packaged class's ['r",
        "handed on",
    ),
    (NeverIdle, NeuronScheduler, {}, "no request is left, and the state is ACTIVE", "idle"),
    (
        IdleWheneverEmpty,
        NeuronScheduler,
        {"not_ready": True},
        "to IDLE, with r0 r1 left",
        "empty step",
    ),
    (
        AsksTheCacheFirst,
        KVAdmissionScheduler,
        {"kv_pressure": True, "extra": ["hold_reason"]},
        "hold_reason is 'KV cache saturated', though 1 of 1 seats are taken",
        "super first",
    ),
    (
        PadsNoTokensOfAnAnswer,
        PaddedScheduler,
        {"kv_pressure": True},
        "r10 lost its KV blocks in step 36, and of its 51 tokens 48 are computed again",
        "padded is a bucket",
    ),
]


@pytest.mark.parametrize(
    ("yours", "packaged", "options", "difference", "rule"),
    WRONG_SCHEDULERS,
    ids=[case[0].__name__ for case in WRONG_SCHEDULERS],
)
def test_a_wrong_scheduler_is_told_the_step_and_the_rule(
    yours, packaged, options, difference, rule
):
    result = compare_schedulers(yours, packaged, **options)
    assert result.status == "not right yet"
    assert re.match(r"step \d+: ", result.message)
    assert difference in str(result)
    broken = re.findall(r"rule broken: ([\w ]+) \(", str(result))
    assert broken == [rule]


@pytest.mark.parametrize("packaged", CLASSES)
@pytest.mark.parametrize("draw", [{}, {"kv_pressure": True}, {"not_ready": True}], ids=str)
def test_a_right_scheduler_is_solved(packaged, draw):
    mine = type("Mine", (packaged,), {})
    result = compare_schedulers(mine, packaged, **draw)
    assert result.solved
    assert f"Mine does what {packaged.__name__} does" in result.message


def test_moving_requests_one_by_one_is_right_as_well():
    assert compare_schedulers(Holdback, HoldbackScheduler).solved


class OneTurnTooLate(SeparatedScheduler):
    def _have_decodes_waited_enough(self, prefill):
        return self._num_consecutive_prefills > self.neuron_config.max_consecutive_prefills


class CountsForNobody(SeparatedScheduler):
    """Prefills for which no decode waited count as well."""

    num_in_a_row = 0

    def _have_decodes_waited_enough(self, prefill):
        return self.num_in_a_row >= self.neuron_config.max_consecutive_prefills

    def _note_progress(self, output):
        super()._note_progress(output)
        if output.total_num_scheduled_tokens:
            self.num_in_a_row = self.num_in_a_row + 1 if self._prefill else 0


class ForgetsTheNextChunk(SeparatedScheduler):
    def _have_decodes_waited_enough(self, prefill):
        return self._num_stall_tokens > self.neuron_config.max_decode_stall_tokens


class OneChunkTooEarly(SeparatedScheduler):
    def _have_decodes_waited_enough(self, prefill):
        return super()._have_decodes_waited_enough(prefill) or self._num_stall_tokens >= 80


TURNS = {"neuron_config": {"max_consecutive_prefills": 2}}
STALL = {
    "max_num_batched_tokens": 64,
    "neuron_config": {"num_batched_tokens_buckets": [8, 16, 64], "max_decode_stall_tokens": 96},
}


@pytest.mark.parametrize(
    ("yours", "settings", "pacing"),
    [
        (OneTurnTooLate, TURNS, "decodes had waited for 2 prefill steps in a row (limit 2)"),
        (CountsForNobody, TURNS, "decodes had waited for 0 prefill steps in a row (limit 2)"),
        (
            ForgetsTheNextChunk,
            STALL,
            "decodes had waited for 64 tokens, the next chunk of r2 takes 64 (limit 96)",
        ),
        (
            OneChunkTooEarly,
            STALL,
            "decodes had waited for 80 tokens, the next chunk of r12 takes 8 (limit 96)",
        ),
    ],
)
def test_a_wrong_turn_is_told_how_long_decodes_had_waited(yours, settings, pacing):
    result = compare_schedulers(yours, SeparatedScheduler, settings=settings)
    assert result.status == NOT_RIGHT
    assert f"pacing:   {pacing}" in result.details
    # With pacing a prompt that has begun may be interrupted, so no rule says that it may not.
    assert "rule broken" not in str(result)


def test_who_answers_nothing_is_told():
    class Silent(HoldbackScheduler):
        def can_schedule(self, request):  # noqa: RET503
            if self.at_capacity:
                return False

    result = compare_schedulers(Silent, HoldbackScheduler)
    assert result.details[0] == "can_schedule() returned None; it must answer True or False"


def test_who_hands_no_output_on_is_told():
    class KeepsTheOutput(NeuronScheduler):
        def schedule(self, throttle_prefills=False):
            super().schedule(throttle_prefills)

    result = compare_schedulers(KeepsTheOutput, NeuronScheduler)
    assert "schedule() returned None; return what super().schedule() gave you" in result.message


def test_an_error_raised_elsewhere_is_told_with_its_place():
    class NoPlaceholders(NeuronAsyncScheduler):
        def _update_after_schedule(self, scheduler_output):
            Scheduler._update_after_schedule(self, scheduler_output)

    result = compare_schedulers(NoPlaceholders, NeuronAsyncScheduler)
    assert result.message == "step 2: AssertionError"
    assert re.match(r"raised in async_scheduler.py, \w+\(\): assert ", result.details[0])


def test_an_endless_loop_is_interrupted_and_its_line_named(monkeypatch):
    monkeypatch.setattr(guard, "MAX_CPU_SECONDS", 0.5)
    result = compare_schedulers(NeverStops, HoldbackScheduler)
    assert result.message == "step 1: an endless loop"
    assert "in your line: " in result.details[0]


def test_an_exception_is_told_with_its_step_and_line():
    result = compare_schedulers(Misspelt, HoldbackScheduler)
    assert result.status == NOT_RIGHT
    assert "step 1: AttributeError: 'FCFSRequestQueue' object has no attribute 'push'" in str(
        result
    )
    assert "in your line: self.holdback_queue.push(self.waiting.pop_request())" in result.details


def test_a_skeleton_is_not_solved_yet():
    result = compare_schedulers(Skeleton, HoldbackScheduler)
    assert result == CheckResult(NOT_SOLVED, "can_schedule() is still to be written")


def test_a_class_that_cannot_be_made():
    class Broken(HoldbackScheduler):
        def __init__(self, *args, **kwargs):
            raise TypeError

    result = compare_schedulers(Broken, HoldbackScheduler)
    assert result.message == "making a Broken: TypeError"


def test_the_scenarios_are_lively():
    scenarios = [draw_scenario(seed) for seed in range(40)]
    assert sum(len(s.aborts) for s in scenarios) > 50
    assert {s.settings["max_num_seqs"] for s in scenarios} == {1, 2, 3, 4}
    chunked = [
        arrival
        for s in scenarios
        for arrival in s.arrivals
        if arrival.num_prompt_tokens > s.settings["max_num_batched_tokens"]
    ]
    assert len(chunked) > 50
    assert draw_scenario(3) == draw_scenario(3)


# Functions

LADDER = [128, 256, 512]
CASES = [(n, LADDER) for n in (50, 127, 128, 129, 512)] + [(0, LADDER), (513, LADDER)]
HOLDS = ValueRule("bucket", "it holds the count", lambda count, buckets, got: got >= count)


def edge_too_large(count, buckets):
    if not 1 <= count <= buckets[-1]:
        raise ValueError(count)
    return next((b for b in buckets if b > count), buckets[-1])


def edge_too_small(count, buckets):
    if not 1 <= count <= buckets[-1]:
        raise ValueError(count)
    return next(b for b in buckets if b >= count - 1)


def no_check(count, buckets):
    return next(b for b in buckets if b >= count)


def loops(count, buckets):
    while True:
        pass


def unsolved(count, buckets):
    raise NotImplementedError


WRONG_LOOKUPS = [
    (edge_too_large, "case 3: edge_too_large(128, [128, 256, 512]): you returned 256, the"),
    (edge_too_small, "case 4: edge_too_small(129, [128, 256, 512]): you returned 128, the"),
    (no_check, "you returned 128, the packaged function raises ValueError: count: 0 must be at"),
]


@pytest.mark.parametrize(("yours", "words"), WRONG_LOOKUPS)
def test_a_wrong_lookup_is_told_the_case_and_the_rule(yours, words):
    result = compare_functions(yours, get_bucket_for_count, CASES, [HOLDS])
    assert result.status == NOT_RIGHT
    assert words in result.message
    broken = "rule broken: bucket (it holds the count)"
    assert (broken in result.details) == (yours is edge_too_small)


def test_a_function_that_raises_something_else_is_told_its_line():
    result = compare_functions(no_check, get_bucket_for_count, [(513, LADDER)])
    assert "you raised StopIteration, the packaged function raises ValueError" in result.message
    assert result.details == ("in your line: return next(b for b in buckets if b >= count)",)


def test_a_function_that_loops(monkeypatch):
    monkeypatch.setattr(guard, "MAX_CPU_SECONDS", 0.2)
    result = compare_functions(loops, get_bucket_for_count, CASES)
    words = "your function did not return within 0.2 s of computing (an endless loop?), the"
    assert words in result.message
    assert result.details == ("in your line: while True:",)


def test_code_that_loops(monkeypatch):
    monkeypatch.setattr(guard, "MAX_CPU_SECONDS_OF_A_RUN", 0.2)
    result = check_value(lambda: loops(1, LADDER), [FIVE])
    assert result.message == "your code did not return within 0.2 s of computing (an endless loop?)"


def test_nothing_is_solved_where_nothing_is_checked():
    empty = [
        check_value("anything", []),
        check_prediction([], []),
        compare_functions(edge_too_large, get_bucket_for_count, []),
        compare_schedulers(HoldbackScheduler, HoldbackScheduler, scenarios=0),
    ]
    assert [result.status for result in empty] == [NOT_SOLVED] * 4
    assert all(result.message.startswith("nothing was checked: ") for result in empty)


def test_a_function_that_is_not_written():
    assert compare_functions(unsolved, get_bucket_for_count, CASES).status == NOT_SOLVED


def test_a_right_function():
    result = compare_functions(get_bucket_for_count, get_bucket_for_count, CASES)
    assert result.status == SOLVED
    assert result.message.endswith("does what get_bucket_for_count does, in 7 cases")


def pads_with_slot_0(**arguments):
    inputs = pad_prefill(**arguments)
    slots = np.where(inputs.slot_mapping == -1, 0, inputs.slot_mapping)
    return inputs._replace(slot_mapping=slots)


def test_a_forgotten_return_breaks_no_rule():
    result = compare_functions(lambda: None, lambda: pad_prefill, [()], [FIVE])
    assert result.details == ()


def test_a_padding_slot_0_is_told_with_its_place_and_rule():
    case = {
        "token_ids": np.arange(5, 11, dtype=np.int32),
        "block_table": np.array([3, 7, 0], dtype=np.int32),
        "num_computed_tokens": 2,
        "num_padded_tokens": 8,
        "block_size": 4,
    }
    rule = ValueRule(
        "padding leaves no trace",
        "a padding token has slot -1",
        lambda *arguments: all(arguments[-1].slot_mapping[len(arguments[0]) :] == -1),
    )
    result = compare_functions(pads_with_slot_0, pad_prefill, [case], [rule])
    where = "slot_mapping[6] is 0 in your result, -1 in the packaged function's"
    assert where in result.message
    assert result.details == ("rule broken: padding leaves no trace (a padding token has slot -1)",)
    assert compare_functions(pad_prefill, pad_prefill, [case]).solved


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        ([1, 2], (1, 2), None),
        (1.0, 1, None),
        (True, 1, "you returned True"),
        (None, 1, "you returned None, it must return 1"),
        (None, list(range(20)), "you returned None, it must return [0, 1,"),
        ({"a": 1}, {"a": 1, "b": 2}, "you returned {'a': 1}"),
        (list(range(20)), [*range(19), 0], "[19] is 19 in your result, 0"),
        (list(range(20)), list(range(19)), "you returned [0, 1,"),
        (np.zeros(2), [0, 0], None),
    ],
)
def test_values_are_compared_by_content(found, expected, words):
    result = compare_functions(lambda: found, lambda: expected, [()])
    assert result.solved if words is None else words in result.message


# Values and predictions

FIVE = ValueRule("five", "it has five rungs", lambda ladder: len(ladder) == 5)
ENDS = ValueRule("end", "it ends in 2048", lambda ladder: ladder[-1] == 2048)


def test_a_value_is_checked_by_rules():
    assert check_value(None, [FIVE]).status == NOT_SOLVED
    wrong = check_value([128, 2048], [FIVE, ENDS])
    assert wrong.status == NOT_RIGHT
    assert wrong.details == ("rule broken: five (it has five rungs)",)
    assert check_value("nonsense", [ENDS]).status == NOT_RIGHT
    assert check_value([1, 2, 3, 4, 2048], [FIVE, ENDS]).solved


def test_a_value_may_come_from_the_learners_code():
    assert check_value(lambda: [1, 2, 3, 4, 2048], [FIVE, ENDS]).solved
    assert check_value(lambda: unsolved(1, LADDER), [FIVE]).status == NOT_SOLVED
    result = check_value(lambda: no_check(513, LADDER), [FIVE])
    assert result.message == "your code raised StopIteration"


class Record:
    def __init__(self, step, state, cause="because", held_head=None):
        self.step, self.state, self.cause = step, state, cause
        self.held_head, self.hold_reason = held_head, held_head and "at capacity"


def test_a_prediction_is_compared_step_by_step():
    trace = [Record(1, "P"), Record(2, "D", held_head="r1"), Record(3, "D")]
    assert check_prediction(["P"], trace).message == "1 of 3 steps predicted, right so far"
    wrong = check_prediction(["P", "P"], trace)
    assert wrong.message == "step 2: you predicted P, it was D (because; r1 held back: at capacity)"
    assert check_prediction(["P", "D", "D"], trace).solved
    states = [Record(1, "ACTIVE_PREFILL", held_head="r1"), Record(2, "ACTIVE_DECODE")]
    assert check_prediction("PD", states).solved
    wrong = check_prediction("DD", states)  # r1 is not why the step was a prefill
    assert wrong.message == "step 1: you predicted D, it was ACTIVE_PREFILL (because)"
    assert not check_prediction(["P", "D", "D", "D"], trace).solved


# Results


def test_a_result_is_text_and_escaped_html():
    result = CheckResult(NOT_RIGHT, "step 1: <b>", ("in your line: <script>",))
    assert str(result) == repr(result) == "not right yet: step 1: <b>\n  in your line: <script>"
    html = result._repr_html_()
    assert "<b>" not in html
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_an_unsolved_check_raises_where_ci_asks_for_it(monkeypatch):
    monkeypatch.setenv("NSL_REQUIRE_SOLVED", "1")
    with pytest.raises(NotSolvedError, match="not solved yet: can_schedule"):
        check_scheduler(Skeleton, HoldbackScheduler, scenarios=1)
    with pytest.raises(NotSolvedError, match="edge_too_large"):
        check_function(edge_too_large, get_bucket_for_count, CASES)
    with pytest.raises(NotSolvedError):
        check_value(None, [FIVE])
    with pytest.raises(NotSolvedError):
        check_prediction([], [Record(1, "P")])
    assert check_scheduler(Holdback, HoldbackScheduler, scenarios=2).solved
    assert not compare_schedulers(Skeleton, HoldbackScheduler, scenarios=1).solved


def test_pick_takes_the_solved_one_and_says_so(capsys):
    solved, unsolved = CheckResult(SOLVED, "well"), CheckResult(NOT_SOLVED, "")
    assert pick(Holdback, HoldbackScheduler, solved) is Holdback
    assert pick(Holdback, HoldbackScheduler, solved, unsolved) is HoldbackScheduler
    assert capsys.readouterr().out == (
        "running your Holdback\n"
        "running the packaged HoldbackScheduler meanwhile: yours is not solved yet\n"
    )
