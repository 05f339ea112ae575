"""Lab: a real engine, stepped by hand."""

import asyncio

import psutil
import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from neuron_sched_lab import HoldbackScheduler, Lab, NeuronScheduler
from neuron_sched_lab.tiny_model.tasks import verified

SMALL = {"max_num_seqs": 2, "max_num_batched_tokens": 128, "max_model_len": 512}


@pytest.fixture(scope="module")
def lab():
    with Lab(**SMALL) as lab:
        yield lab


@pytest.fixture(autouse=True)
def finish_what_a_test_left(request):
    yield
    if "lab" in request.fixturenames:
        request.getfixturevalue("lab").run()


def test_the_model_answers_through_the_scheduler(lab):
    tasks = verified(4, max_tokens=200, seed=3)
    ids = [lab.add(task.prompt, max_tokens=task.max_tokens) for task in tasks]
    lab.run()
    for request_id, task in zip(ids, tasks, strict=True):
        assert task.check(lab.text[request_id]), (task, lab.text[request_id])


def test_step_returns_the_record_it_appended(lab):
    lab.add([5] * 200, max_tokens=2, ignore_eos=True)
    record = lab.step()
    assert record is lab.trace[-1]
    assert (record.phase, record.num_tokens, record.num_padded_tokens) == ("prefill", 128, 128)
    assert lab.step().num_padded_tokens == 128  # 72 tokens, padded
    assert lab.trace[-1].num_tokens == 72
    assert lab.step().phase == "decode"
    assert lab.step() is None


def test_text_grows_while_a_request_runs(lab):
    request_id = lab.add("1997 1998 ", max_tokens=6)
    lengths = []
    while lab.step() is not None:
        lengths.append(len(lab.text[request_id]))
    assert lengths == sorted(lengths)
    assert lab.text[request_id].startswith("1999 ")


def test_abort_frees_the_blocks_and_is_recorded(lab):
    pool = lab.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    running = lab.add([7] * 100, max_tokens=50, ignore_eos=True)
    waiting = lab.add([8] * 100, max_tokens=2, ignore_eos=True)
    lab.step()
    lab.abort(running)
    record = lab.step()
    assert record.aborted == (running,)
    assert record.scheduled[0].request_id == waiting
    lab.run()
    assert pool.get_num_free_blocks() == free
    assert lab.scheduler.requests == {}


def test_aborting_twice_or_after_the_end_is_harmless(lab):
    request_id = lab.add([7] * 10, max_tokens=1)
    lab.abort(request_id)
    lab.abort(request_id)
    assert lab.step() is None or not lab.trace[-1].scheduled


def test_unknown_and_taken_request_ids(lab):
    with pytest.raises(KeyError, match="'nobody' is unknown"):
        lab.abort("nobody")
    lab.add([7], max_tokens=1, request_id="mine")
    with pytest.raises(ValueError, match="'mine' is taken"):
        lab.add([7], max_tokens=1, request_id="mine")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt": []}, "prompt: it is empty"),
        ({"prompt": [5] * 512}, "512 tokens leave no room for an answer within max_model_len"),
        ({"prompt": [5, 10**6]}, "request 'x'"),
        ({"prompt": 5}, "prompt: 5 must be text or a list of token ids (ints)"),
        ({"prompt": None}, "prompt: None must be text"),
        ({"prompt": b"text"}, "prompt: b'text' must be text"),
        ({"prompt": [1.5]}, "prompt: [1.5] must be text or a list of token ids"),
        ({"prompt": ["a"]}, "prompt: ['a'] must be text or a list of token ids"),
        ({"prompt": [5], "max_tokens": 0}, "max_tokens: 0 must be an int of at least 1"),
        ({"prompt": [5], "max_tokens": "3"}, "max_tokens: '3' must be an int"),
        ({"prompt": [5], "temperature": -1.0}, "request 'x' with temperature = -1.0: vLLM refuses"),
        ({"prompt": [5], "temperature": "a"}, "request 'x' with temperature = 'a': vLLM refuses"),
        ({"prompt": [5], "temperatur": 1}, "did you mean 'temperature'?"),
        ({"prompt": [5], "foo": 1}, "foo: SamplingParams() has no such setting"),
        ({"prompt": [5], "request_id": 5}, "request_id: 5 must be text"),
    ],
)
def test_a_refused_request_leaves_nothing_behind(lab, request_, message):
    before = dict(lab.trace.requests)
    with pytest.raises(ValueError) as error:
        lab.add(**{"request_id": "x", **request_})
    assert message in str(error.value)
    assert lab.trace.requests == before
    assert not lab.has_unfinished_requests


def test_a_hostile_request_id_is_plain_text(lab):
    hostile = "<img src=x onerror=alert(1)>\u202e\n" + "x" * 10_000
    lab.add([7] * 3, max_tokens=1, request_id=hostile)
    lab.run()
    assert hostile in lab.trace.tokens()


def test_plain_vllm_scheduler_is_recorded_too():
    with Lab(Scheduler, **SMALL) as lab:
        for length in (60, 200, 40):
            lab.add([9] * length, max_tokens=3, ignore_eos=True)
        lab.run()
        assert {r.state for r in lab.trace} == {None}
        assert any(r.phase == "mixed" for r in lab.trace)
        assert any(r.waiting for r in lab.trace)
        assert not any(r.held_back or r.hidden for r in lab.trace)


def test_a_holdback_scheduler_mixes_phases():
    with Lab(HoldbackScheduler, **SMALL) as lab:
        for length in (60, 200, 40):
            lab.add([9] * length, max_tokens=3, ignore_eos=True)
        lab.run()
        assert any(r.phase == "mixed" for r in lab.trace)
        assert any(r.held_back for r in lab.trace)


def test_the_scheduler_is_idle_once_the_last_request_ends(lab):
    lab.add([7] * 3, max_tokens=2)
    lab.run()
    assert lab.scheduler.state.value == "IDLE"


def test_ten_labs_in_one_process_do_not_leak():
    process, sizes = psutil.Process(), []
    for _ in range(10):
        with Lab(NeuronScheduler, **SMALL) as lab:
            lab.add("1 2 3 ", max_tokens=3)
            lab.run()
        sizes.append(process.memory_info().rss)
    # Each Lab holds several MB of KV cache and weights; a leak of them would add up.
    assert sizes[-1] - sizes[2] < 40e6


def test_inside_a_running_event_loop():
    async def main():
        with Lab(**SMALL) as lab:
            lab.add("1 2 3 ", max_tokens=3)
            await asyncio.sleep(0)
            lab.run()
            return lab.text["r0"]

    assert asyncio.run(main())


def test_a_closed_lab_says_so():
    lab = Lab(**SMALL)
    lab.close()
    lab.close()
    with pytest.raises(RuntimeError, match="this Lab was closed"):
        lab.add([1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "/no/such/model"}, "model: '/no/such/model' is no directory with a config.json"),
        ({"max_num_seqs": 0}, "max_num_seqs: 0 must be an int of at least 1"),
        ({"max_num_batched_tokens": "128"}, "max_num_batched_tokens: '128' must be an int"),
        ({"block_size": True}, "block_size: True must be an int"),
        ({"num_kv_blocks": 10}, "num_kv_blocks: 10 must hold one request of max_model_len = 2048"),
        ({"neuron_config": {"num_seqs_bucket": [4]}}, "did you mean 'num_seqs_buckets'"),
        ({"neuron_config": {"num_seqs_buckets": [2]}}, "last bucket 2 must equal max_num_seqs"),
        ({"scheduler": "NeuronScheduler"}, "scheduler: 'NeuronScheduler' is no vLLM scheduler"),
        ({"scheduler": dict}, "scheduler: <class 'dict'> is no vLLM scheduler class"),
        ({"model": 5}, "model: 5 is no directory with a config.json"),
        ({"model": None}, "model: None is no directory with a config.json"),
        ({"max_model_len": 10**9}, "max_model_len: 1000000000 must be at most 2048, the positions"),
        ({"max_num_batched_tokens": 3}, "3 must be at least max_num_seqs = 4"),
        ({"neuron_config": 5}, "neuron_config: 5 must be a dict, such as"),
        ({"neuron_config": "x"}, "neuron_config: 'x' must be a dict"),
        ({"worker": []}, 'worker: [] must be "auto", "neuron" or "vllm"'),
        ({"enable_prefix_caching": "x"}, "enable_prefix_caching: 'x' must be True or False"),
        ({"async_scheduling": "x", "worker": "vllm"}, "async_scheduling: 'x' must be True or"),
        ({"max_seqs": 4}, "max_seqs: Lab() has no such setting; did you mean 'max_num_seqs'?"),
        ({"num_gpu_blocks_override": 99}, "did you mean 'num_kv_blocks'?"),
        ({"foo": 1}, "foo: Lab() has no such setting; help(Lab) lists them"),
    ],
)
def test_a_bad_setting_is_named_before_an_engine_starts(settings, message, monkeypatch):
    def no_engine(**kwargs):
        raise AssertionError("an engine was started")

    monkeypatch.setattr("neuron_sched_lab.engine.lab.LLM", no_engine)
    with pytest.raises(ValueError) as error:
        Lab(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json is no JSON"),
        ("{}", "config.json has no model_type"),
        ('{"model_type": "llama"}', "has none of tokenizer.json, tokenizer.model"),
    ],
)
def test_a_broken_model_directory_is_named(config, message, tmp_path):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError) as error:
        Lab(model=tmp_path)
    assert str(error.value).startswith(f"model: {str(tmp_path)!r}")
    assert message in str(error.value)


@pytest.mark.parametrize("settings", [{"dtype": "foo"}, {"seed": "x"}, {"watermark": 5}])
def test_what_vllm_refuses_is_one_line_with_its_name(settings):
    with pytest.raises(ValueError) as error:
        Lab(**settings)
    ((name, value),) = settings.items()
    assert str(error.value).startswith(f"{name}: {value!r} is refused by vLLM: Input should be")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_an_engine_that_does_not_fit_in_memory_is_refused(problem, monkeypatch):
    def no_memory(**kwargs):
        raise problem

    monkeypatch.setattr("neuron_sched_lab.engine.lab.LLM", no_memory)
    with pytest.raises(ValueError, match="num_kv_blocks = 257, block_size = 32, .* lower one"):
        Lab()


@pytest.mark.parametrize("max_steps", ["x", -1, 1.5, True])
def test_run_takes_a_count(lab, max_steps):
    with pytest.raises(ValueError, match="max_steps: .* must be an int of at least 0"):
        lab.run(max_steps)


class Never(NeuronScheduler):
    def can_schedule(self, request):
        return False


def test_a_run_that_stands_still_ends_with_an_error():
    with Lab(Never, **SMALL) as lab:
        for _ in range(10):
            lab.add([7], max_tokens=1)
        with pytest.raises(RuntimeError) as error:
            lab.run()
        assert str(error.value).startswith(
            "Never: steps 1 to 100 scheduled nothing, though requests are left: r0 r1 "
        )
        # Whoever asks for a number of steps gets them.
        assert len(lab.run(max_steps=150)) == 100 + 150
        lab.reset()
        assert len(lab.run()) == 0


def test_a_grammar_that_takes_long_is_no_standstill(lab, monkeypatch):
    request_id = lab.add([7], max_tokens=2, ignore_eos=True)
    request = next(iter(lab.scheduler.requests.values()))
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    steps_left, schedule = [150], lab.scheduler.schedule

    def compile_while_scheduling(*args, **kwargs):
        steps_left[0] -= 1
        if not steps_left[0]:
            request.status = RequestStatus.WAITING
        return schedule(*args, **kwargs)

    monkeypatch.setattr(lab.scheduler, "_try_promote_blocked_waiting_request", lambda _: False)
    monkeypatch.setattr(lab.scheduler, "schedule", compile_while_scheduling)
    before = len(lab.trace)
    lab.run()
    assert len(lab.trace) - before > 150
    assert len(lab.trace.tokens()[request_id]) == 2
