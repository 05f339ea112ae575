"""Replay and calibration: a workload through a live Lab, and a cost model from what it took.

How near the prediction comes is for benchmarks/fidelity.py to show: here nothing depends on how
fast the machine is.
"""

import pytest

from neuron_sched_lab import Lab
from neuron_sched_lab.engine.replay import replay, replay_in_turn
from neuron_sched_lab.simulation.calibration import calibrate
from neuron_sched_lab.simulation.simulation import simulate
from neuron_sched_lab.workloads.generators import closed_loop, poisson, shared_prefix
from neuron_sched_lab.workloads.request import WorkloadRequest
from neuron_sched_lab.workloads.workload import Workload

SETTINGS = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 128,
    "max_model_len": 512,
    "enable_prefix_caching": False,
}


@pytest.fixture(scope="module")
def lab():
    with Lab(**SETTINGS) as lab:
        yield lab


@pytest.fixture(autouse=True)
def new_trace(request):
    if "lab" in request.fixturenames:
        request.getfixturevalue("lab").reset()


def all_at_once(num_requests):
    return Workload(
        "at once",
        tuple(WorkloadRequest(f"r{i}", 0.0, 20 + 30 * i, 2 + 3 * i) for i in range(num_requests)),
    )


@pytest.mark.parametrize("cpu_time", [True, False])
def test_every_request_gets_its_tokens_and_is_measured(lab, cpu_time):
    workload = poisson(50, 12, prompt=(60, 0.5), output=(6, 0.5))
    live = replay(lab, workload, cpu_time=cpu_time)
    assert {r: len(t) for r, t in live.trace.tokens().items()} == {
        r.request_id: r.num_output_tokens for r in workload
    }
    assert list(live.log.arrival) == [r.arrival_seconds for r in workload]
    assert live.log.num_steps == len(live.trace)
    metrics = live.metrics()
    assert metrics.num_finished == 12
    # A request cannot be served before it arrives, nor a run end before its last arrival.
    assert metrics.ttft.p50 > 0 and metrics.queue.p50 >= 0
    arrivals = live.log.arrival
    assert metrics.makespan >= arrivals[-1] - arrivals[0]


def test_real_time_waits_for_arrivals(lab):
    requests = (WorkloadRequest("a", 0.0, 10, 1), WorkloadRequest("b", 0.3, 10, 1))
    log = replay(lab, Workload("w", requests)).log
    assert log.step_end[-1] > log.runs[-1].start >= 0.3


def test_followers_wait_for_the_answer(lab):
    live = replay(lab, closed_loop(2, 6, think_seconds=0.01, prompt=20, output=3), cpu_time=True)
    finished = dict(zip(live.log.request_ids, live.log.finished, strict=True))
    arrival = dict(zip(live.log.request_ids, live.log.arrival, strict=True))
    for i in range(2, 6):
        assert arrival[f"r{i}"] > finished[f"r{i - 2}"]


def test_prompts_share_what_the_workload_says(lab):
    workload = shared_prefix(50, 6, num_prefixes=2, prefix_blocks=1, prompt=5, output=1)
    short = Workload(
        "short",
        tuple(
            WorkloadRequest(r.request_id, r.arrival_seconds, 105, 1, None, r.prefix_hash_ids)
            for r in workload
        ),
        hash_block_tokens=100,
    )
    prompts = []
    add = lab.add
    lab.add = lambda prompt, **rest: (prompts.append(tuple(prompt)), add(prompt, **rest))
    try:
        replay(lab, short, cpu_time=True)
    finally:
        del lab.add
    assert len({p[:100] for p in prompts}) == 2
    assert len(set(prompts)) == 6
    assert all(3 <= token < 128 for p in prompts for token in p)


def test_text_is_sent_as_it_is(lab):
    request = WorkloadRequest("a", 0.0, 11, 6, prompt="1997 1998 ")
    live = replay(lab, Workload("w", (request,)), cpu_time=True)
    assert lab.text["a"].startswith("1999 ")
    assert live.trace.requests["a"].prompt == "1997 1998 "


def test_a_busy_lab_and_a_prompt_too_long_are_refused(lab):
    with pytest.raises(ValueError, match="request|prompt"):
        replay(lab, Workload("w", (WorkloadRequest("a", 0.0, 600, 1),)))
    lab.add([5] * 10, max_tokens=5)
    with pytest.raises(ValueError, match="lab: it has unfinished requests"):
        replay(lab, all_at_once(1))


def test_two_labs_in_turn_have_clocks_of_their_own(lab):
    with Lab(**SETTINGS) as other:
        live, beside = replay_in_turn(lab, all_at_once(2), (other, all_at_once(6)))
        assert live.metrics().num_finished == 2
        assert beside.log.num_steps == live.log.num_steps
        for result in (live, beside):
            starts, ends = [run.start for run in result.log.runs], list(result.log.step_end)
            # Hardly a pause, though the other ran in between.
            pauses = [start - end for start, end in zip(starts[1:], ends[:-1], strict=True)]
            assert 0 <= sum(pauses) < 0.1 * ends[-1]
        lab.reset()
        other.reset()
        with pytest.raises(ValueError, match="beside: 'at once' ended before 'at once'; make it"):
            replay_in_turn(lab, all_at_once(6), (other, all_at_once(2)))


def test_a_simulation_calibrated_on_a_run_takes_the_steps_of_the_run(lab):
    workload = all_at_once(8)
    live = replay(lab, workload, cpu_time=True)
    cost_model = calibrate(live.log, live.trace)
    simulated = simulate(workload, cost_model=cost_model, **SETTINGS)
    assert [(r.phase, r.shape) for r in simulated.trace] == [(r.phase, r.shape) for r in live.trace]
    known = [("prefill", size) for size in cost_model.prefill]
    known += [("decode", size) for size in cost_model.decode]
    assert set(known) == {r.shape for r in live.trace}
    # The table's means are those of the run, its first step of each graph left out.
    seconds = [end - run.start for run, end in zip(live.log.runs, live.log.step_end, strict=True)]
    longest = len(seconds) * max(seconds) + live.log.intake_seconds
    assert 0 < simulated.metrics().makespan <= longest * 1.001


def test_log_and_trace_must_belong_together(lab):
    live = replay(lab, all_at_once(2), cpu_time=True)
    del live.trace.records[-1]
    with pytest.raises(ValueError, match=r"trace: \d+ records for \d+ steps in the log"):
        calibrate(live.log, live.trace)
