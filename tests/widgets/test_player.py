"""The playhead: replaying and stepping, from a cell, from a button, from another thread."""

import asyncio
import threading
import time

import pytest

from neuron_sched_lab.widgets import Player
from neuron_sched_lab.widgets.player import MAX_SPEED, MAX_STEPS_TO_CHANGE
from tests.widgets.fake_lab import FakeLab, make_lab


def test_step_makes_a_step_of_a_live_lab():
    lab = make_lab()
    player = Player(lab)
    player.step()
    assert (len(lab.trace), player.position, player.is_at_end) == (1, 1, True)


def test_a_recorded_trace_starts_at_its_beginning_and_ends():
    trace = make_lab().run()
    player = Player(trace)
    assert player.position == 0
    player.play()
    assert player.position == len(trace)
    player.step()
    assert player.message == ("status", "end of the recorded trace")


def test_looking_back_while_live_then_playing_on():
    lab = make_lab()
    player = Player(lab)
    for _ in range(5):
        player.step()
    player.seek(2)
    assert player.moment().step == 2
    player.step()
    assert (player.position, len(lab.trace)) == (3, 5)  # replayed, nothing new
    player.play()
    assert player.position == len(lab.trace) > 5
    assert not lab.has_unfinished_requests


@pytest.mark.parametrize(("asked", "found"), [(-5, 0), (3, 3), (99, 5)])
def test_seek_stays_within_the_trace(asked, found):
    player = Player(make_lab())
    for _ in range(5):
        player.step()
    player.seek(asked)
    assert player.position == found


def test_run_to_change_stops_at_the_first_step_in_another_state():
    lab = make_lab()
    player = Player(lab)
    player.step()
    player.run_to_change()
    states = [record.state for record in lab.trace]
    assert states[-1] != states[-2]
    assert len(set(states[:-1])) == 1
    assert player.position == len(states)


def test_run_to_change_gives_up_on_a_scheduler_that_stalls():
    lab = FakeLab()
    lab.add([7] * 10, max_tokens=5000)
    player = Player(lab)
    player.step()
    player.run_to_change()
    player.run_to_change()
    assert len(lab.trace) == 2 + MAX_STEPS_TO_CHANGE
    assert player.message == ("status", "no change of state in 1,000 steps")


def test_an_empty_lab_says_what_to_do():
    player = Player(FakeLab())
    player.step()
    assert player.message == ("status", "nothing left to do; add a request")


def test_steps_and_requests_of_a_cell_are_followed():
    lab = make_lab()
    player, seen = Player(lab), []
    player.observers.append(lambda: seen.append(player.position))
    lab.step()
    lab.step()
    assert seen == [1, 2]
    player.seek(1)
    lab.step()
    assert player.position == 1  # who looks back is left alone
    lab.add([7], request_id="late")
    assert player.history.num_requests == 7


def test_add_by_text_and_by_length():
    lab = FakeLab()
    player = Player(lab)
    assert player.add("1 2 3 ", max_tokens=2) == ["r0"]
    player.add(num_tokens=50, n=3)
    assert [info.num_prompt_tokens for info in lab.trace.requests.values()] == [6, 50, 50, 50]
    assert player.message == ("status", "added 3 requests")


@pytest.mark.parametrize(
    "arguments", [{"n": 0}, {"n": 10**6}, {"num_tokens": 0}, {"max_tokens": 0}]
)
def test_a_bad_request_is_refused(arguments):
    lab = FakeLab()
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Player(lab).add(**arguments)
    assert not lab.trace.requests


def test_an_abort_is_seen_before_the_next_step():
    lab = make_lab()
    player = Player(lab)
    player.step()
    player.abort("r1")
    assert player.moment().pending_aborts == (1,)
    player.step()
    assert player.moment().pending_aborts == ()
    assert player.history.aborted == [(2, 1)]


def test_an_abort_is_seen_where_the_lab_does_not_tell():
    lab = make_lab()
    player = Player(lab)
    lab.pending_aborts = []  # as that of a Lab without the attribute
    player.abort("r1")
    assert player.moment().pending_aborts == (1,)


def test_a_recorded_trace_takes_no_requests():
    player = Player(make_lab().run())
    with pytest.raises(RuntimeError, match="recorded trace"):
        player.add("x")
    with pytest.raises(RuntimeError, match="recorded trace"):
        player.abort("r0")
    player.step()
    player.reset()
    assert player.position == 0


def test_reset_starts_again_and_refills():
    lab = make_lab()
    player = Player(lab)
    player.refill = lambda lab: lab.add([7] * 9, request_id="again")
    player.play()
    player.reset()
    assert (player.position, list(lab.trace.requests)) == (0, ["again"])
    assert player.history.trace is lab.trace
    player.play()
    assert player.is_at_end


def test_a_function_that_makes_a_lab_is_called_again():
    made = []

    def make():
        made.append(make_lab())
        return made[-1]

    player = Player(make)
    player.play()
    player.reset()
    assert len(made) == 2
    assert made[0].closed
    assert (player.lab, player.position) == (made[1], 0)
    made[1].step()
    assert player.position == 1


def test_a_lab_that_cannot_be_reset_says_so():
    class Plain:
        def __init__(self):
            self.trace = make_lab().trace

    player = Player(Plain())
    assert not player.can_reset
    with pytest.raises(RuntimeError, match="give a function that makes a Lab"):
        player.reset()


def test_a_reset_in_a_cell_is_followed():
    lab = make_lab()
    player = Player(lab)
    player.play()
    lab.reset()
    assert (player.position, len(player.history)) == (0, 0)


@pytest.mark.parametrize("source", [7, None, "run.jsonl"])
def test_a_source_that_is_none_is_refused(source):
    with pytest.raises(ValueError, match="is neither a Lab nor a Trace"):
        Player(source)


def test_views_of_one_source_share_its_player():
    lab, other = make_lab(), make_lab()
    player = Player.of(lab)
    assert Player.of(lab) is player
    assert Player.of(player) is player
    assert Player.of(other) is not player


def in_loop(main):
    """Run `main()` in an event loop, as a notebook's cell runs in the kernel's."""
    return asyncio.run(asyncio.wait_for(main(), 20))


async def wait_for_steps(player, steps):
    """Yield until so many steps are shown; return how often."""
    yields = 0
    while player.position < steps:
        await asyncio.sleep(0)
        yields += 1
    return yields


def test_play_leaves_the_loop_free_and_pause_stops_at_once():
    async def main():
        lab = FakeLab()
        lab.add([7] * 10, max_tokens=5000)
        player = Player(lab)
        player.speed = MAX_SPEED
        player.play()
        assert player.is_playing
        assert await wait_for_steps(player, 50) >= 40
        player.pause()
        made = len(lab.trace)
        await asyncio.sleep(0.05)
        assert len(lab.trace) == made
        assert not player.is_playing

    in_loop(main)


def test_speed_is_steps_a_second():
    async def main():
        player = Player(make_lab())
        player.speed = 50
        start = time.monotonic()
        player.play()
        await wait_for_steps(player, 11)
        # Ten pauses of 20 ms: no machine is too fast for that, and a slow one may take longer.
        assert time.monotonic() - start > 0.15

    in_loop(main)


def test_a_cell_may_await_the_end():
    async def main():
        lab = make_lab()
        player = Player(lab)
        player.speed = MAX_SPEED
        await player.play()
        assert not lab.has_unfinished_requests
        assert not player.is_playing

    in_loop(main)


def test_a_cell_may_use_the_lab_while_it_plays():
    async def main():
        lab = make_lab()
        player = Player(lab)
        player.speed = MAX_SPEED
        task = player.play()
        await asyncio.sleep(0)
        lab.add([7] * 40, max_tokens=3, request_id="cell")
        lab.step()
        await task
        assert "cell" in lab.text
        assert player.position == len(lab.trace) == lab.trace[-1].step

    in_loop(main)


def test_draws_are_few_and_the_last_is_there():
    async def main():
        lab = FakeLab()
        lab.add([7] * 10, max_tokens=2000)
        player, seen = Player(lab), []
        player.observers.append(lambda: seen.append(player.position))
        player.speed = MAX_SPEED
        start = time.monotonic()
        await player.play()
        await asyncio.sleep(0.1)
        allowed = (time.monotonic() - start) * 30 + 3
        assert seen[-1] == len(lab.trace) == 2000
        assert len(seen) <= allowed

    in_loop(main)


def test_a_callback_on_another_thread_runs_on_the_loops_thread():
    async def main():
        lab = make_lab()
        player, threads = Player(lab), []

        def step():
            threads.append(threading.get_ident())
            player.step()

        thread = threading.Thread(target=lambda: player.post(step))
        thread.start()
        thread.join()
        assert threads == []
        await asyncio.sleep(0.01)
        assert threads == [threading.get_ident()]
        assert len(lab.trace) == 1

    in_loop(main)


@pytest.mark.parametrize("action", ["step", "play"])
def test_an_error_is_shown(action):
    async def main():
        lab = make_lab()
        player = Player(lab)
        lab.close()
        player.post(getattr(player, action))
        await asyncio.sleep(0.01)
        kind, text = player.message
        assert (kind, player.is_playing) == ("alert", False)
        assert "RuntimeError: Lab: this Lab was closed" in text

    in_loop(main)


def test_an_error_goes_with_the_next_step():
    player = Player(make_lab())
    player.post(lambda: player.abort("nobody"))
    assert player.message[0] == "alert"
    assert "'nobody' is unknown" in player.message[1]
    player.step()
    assert player.message == ("status", "")
