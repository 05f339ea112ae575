"""NeuronWorker in a live engine: graphs, refusals, resumes, aborts, async feeding, start-up."""

import random
from collections import Counter

import pytest
import torch
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import (
    HoldbackScheduler,
    Lab,
    NeuronAsyncScheduler,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from neuron_sched_lab.runner.llama import Llama
from neuron_sched_lab.runner.model_runner import NeuronModelRunner
from tests.runner.checkpoints import save_random_llama
from tests.runner.running import make_prompts, run_lab, runner_of, worker_of

PROMPTS = [prompt[:300] for prompt in make_prompts(12, seed=1)]


@pytest.fixture(scope="module")
def smallest_model(tmp_path_factory):
    """One layer: a thousand requests in seconds."""
    return save_random_llama(
        tmp_path_factory.mktemp("smallest"), heads=2, kv_heads=1, head_dim=32, tied=True, layers=1
    )


# Graphs.


def test_as_many_graphs_as_buckets_after_1000_requests(smallest_model, monkeypatch):
    """Every shape that ever reaches the layers is one of the ladder's."""
    shapes = set()
    embed = Llama._embed

    def watching(self, input_ids, *args):
        shapes.add(len(input_ids))
        return embed(self, input_ids, *args)

    monkeypatch.setattr(Llama, "_embed", watching)
    rng = random.Random(0)
    with Lab(
        NeuronScheduler,
        smallest_model,
        max_num_seqs=7,
        max_num_batched_tokens=96,
        max_model_len=256,
        neuron_config={"num_batched_tokens_buckets": [16, 48, 96], "num_seqs_buckets": [2, 5, 7]},
        skip_tokenizer_init=True,
    ) as lab:
        graphs = runner_of(lab).graphs
        assert [record.key for record in graphs.log] == [
            ("prefill", 16),
            ("prefill", 48),
            ("prefill", 96),
            ("decode", 2),
            ("decode", 5),
            ("decode", 7),
        ]
        for _ in range(1000):
            prompt = [rng.randrange(3, 160) for _ in range(rng.randint(1, 150))]
            lab.add(prompt, max_tokens=rng.randint(1, 4), ignore_eos=True, detokenize=False)
            if rng.random() < 0.5:
                lab.step()
        lab.run()
        for batch in (1, 4, 7):  # a batch for each bucket, whatever came above
            for _ in range(batch):
                lab.add([7] * 20, max_tokens=3, ignore_eos=True, detokenize=False)
            lab.run()
        assert len(graphs) == len(graphs.log) == 6
        assert all(calls > 0 for calls in graphs.num_calls.values())
        assert sum(graphs.num_calls.values()) == sum(r.phase != "empty" for r in lab.trace)
        assert all(record.seconds > 0 for record in graphs.log)
    assert shapes == {16, 48, 96, 2, 5, 7}


def test_a_step_outside_the_ladder_is_refused(monkeypatch):
    """A scheduler that pads to something else."""
    monkeypatch.setattr(PaddedScheduler, "_calculate_padded_count", lambda self, n: n + 3)
    with Lab() as lab:
        lab.add([5] * 10)
        with pytest.raises(RuntimeError, match=r"prefill shape 13 has no compiled graph.*128, 256"):
            lab.step()


# Schedulers that it cannot run behind.


@pytest.mark.parametrize("scheduler", [Scheduler, HoldbackScheduler])
def test_a_mixed_batch_is_refused(scheduler, monkeypatch):
    def pad(self, throttle_prefills=False, schedule=scheduler.schedule):
        output = schedule(self, throttle_prefills)
        output.num_scheduled_tokens_padded = {
            req_id: 1 if n == 1 else 128 for req_id, n in output.num_scheduled_tokens.items()
        }
        return output

    monkeypatch.setattr(scheduler, "schedule", pad)
    with Lab(scheduler, worker="neuron") as lab:
        lab.add([5] * 10, request_id="old")
        lab.step()
        lab.add([6] * 10, request_id="new")
        with pytest.raises(
            RuntimeError,
            match=r"mixed batch: prefill of \['new'\] together with decode of \['old'\]",
        ):
            lab.step()


def test_two_prefills_in_a_step_are_refused():
    with Lab(Scheduler, worker="neuron") as lab:
        lab.add([5] * 10, request_id="a")
        lab.add([6] * 10, request_id="b")
        with pytest.raises(RuntimeError, match=r"2 prefills in one batch: \['a', 'b'\]"):
            lab.step()


@pytest.mark.parametrize("scheduler", [Scheduler, SeparatedScheduler])
def test_an_output_without_padding_is_refused(scheduler):
    with Lab(scheduler, worker="neuron") as lab:
        lab.add([5] * 10, request_id="a")
        with pytest.raises(RuntimeError, match=r"num_scheduled_tokens_padded: missing.*\['a'\]"):
            lab.step()


# Requests that come, go and come back.


@pytest.mark.parametrize("form", ["V1", "V2"])
@pytest.mark.parametrize("scheduler", [NeuronScheduler, NeuronAsyncScheduler])
def test_resumed_requests_go_on_as_if_nothing_had_happened(scheduler, form):
    """Running requests are thrown out several times, blocks and all; some have a seed.

    Not in the async engine: what was in flight is thrown away there, and drawn again.
    """
    seeds = scheduler is NeuronScheduler

    def run(resets):
        with Lab(scheduler, max_num_seqs=4, max_num_batched_tokens=128) as lab:
            lab.scheduler.use_v2_model_runner = form == "V2"
            for i, prompt in enumerate(PROMPTS):
                sampling = {"temperature": 1.0, "seed": i} if seeds and i % 2 else {}
                lab.add(prompt, max_tokens=12, ignore_eos=True, **sampling)
            step = 0
            while lab.step() is not None:
                step += 1
                if step in resets:
                    lab.scheduler.reset_prefix_cache(reset_running_requests=True)
            return lab.trace.tokens(), step

    expected, steps = run(resets=())
    tokens, more_steps = run(resets={3, 17, 31})
    assert tokens == expected
    assert more_steps > steps  # work was done again


def test_aborted_requests_leave_nothing_behind():
    with Lab(max_num_seqs=4, max_num_batched_tokens=128) as lab:
        runner = runner_of(lab)
        for round_ in range(3):
            ids = [lab.add(prompt, max_tokens=8, ignore_eos=True) for prompt in PROMPTS]
            for _ in range(5 + 4 * round_):
                lab.step()
            for req_id in ids[::2]:  # waiting, prefilling and decoding ones
                lab.abort(req_id)
            lab.run()
        lab._core.step_fn()  # tells the worker who ended last
        assert not runner.requests.states
        assert sorted(runner.requests._free_rows) == list(range(4))


def test_an_id_may_come_back_at_once():
    with Lab() as lab:
        engine = lab.llm.llm_engine
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        engine.add_request("x", TokensPrompt(prompt_token_ids=PROMPTS[0][:50]), params)
        engine.step()
        engine.abort_request(["x"])
        engine.add_request("x", TokensPrompt(prompt_token_ids=PROMPTS[1][:50]), params)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
    alone = run_lab([PROMPTS[1][:50]])[0]
    assert list(outputs[-1].outputs[0].token_ids) == alone[:4]


def test_n_samples_of_one_prompt_differ_and_repeat():
    def run():
        with Lab() as lab:
            (output,) = lab.llm.generate(
                [TokensPrompt(prompt_token_ids=PROMPTS[0][:40])],
                SamplingParams(n=3, max_tokens=8, temperature=2.0, seed=5, ignore_eos=True),
                use_tqdm=False,
            )
            return [list(sample.token_ids) for sample in output.outputs]

    first = run()
    assert len({tuple(tokens) for tokens in first}) == 3
    assert run() == first


def test_stop_conditions():
    with Lab() as lab:
        free = lab.add("1997 1998 ", max_tokens=12, ignore_eos=True)
        lab.run()
        assert lab.text[free].startswith("1999 2000")
        stopped = lab.add("1997 1998 ", max_tokens=12, stop=[" 20"])
        by_id = lab.add("1997 1998 ", max_tokens=12, stop_token_ids=[ord("2") - 29])
        short = lab.add("1997 1998 ", max_tokens=1)
        lab.run()
        assert lab.text[stopped] == "1999"
        assert lab.trace.tokens()[by_id][-1] == ord("2") - 29
        assert len(lab.trace.tokens()[short]) == 1


def test_the_longest_prompt_gives_one_token():
    with Lab(max_model_len=256) as lab:
        lab.add([5] * 255, max_tokens=10, ignore_eos=True)
        lab.run()
        assert [len(tokens) for tokens in lab.trace.tokens().values()] == [1]


# Async.


def test_async_tokens_stay_on_the_device_while_the_batch_is_unchanged():
    with Lab(NeuronAsyncScheduler, max_num_seqs=4) as lab:
        runner = runner_of(lab)
        assert lab._core.batch_queue is not None
        for prompt in PROMPTS[:4]:
            lab.add(prompt[:100], max_tokens=20, ignore_eos=True)
        lab.run()
        decodes = sum(record.phase == "decode" for record in lab.trace)
        assert runner.num_device_feeds + runner.num_host_feeds == decodes
        # The batch changes when a request ends its prompt or itself; all end together here.
        assert runner.num_device_feeds >= 15
        assert 1 <= runner.num_host_feeds <= 6


def test_async_answers_do_not_depend_on_the_feed(monkeypatch):
    """Every step waits for the host instead: the same tokens."""
    fed = run_lab(PROMPTS, NeuronAsyncScheduler)

    def no_feed(self, requests, bucket):
        self._settle()

    monkeypatch.setattr(NeuronModelRunner, "_feed_from_device", no_feed)
    assert run_lab(PROMPTS, NeuronAsyncScheduler) == fed


def test_async_needs_a_scheduler_for_it():
    with pytest.raises(ValueError, match="async_scheduling: True needs a subclass of"):
        Lab(NeuronScheduler, async_scheduling=True)


def test_an_async_scheduler_runs_in_a_plain_engine_too():
    expected = run_lab(PROMPTS)
    assert run_lab(PROMPTS, NeuronAsyncScheduler, async_scheduling=False) == expected


# Start.


def test_a_start_runs_every_graph_once_and_nothing_else(monkeypatch):
    """No compiler, no profiling run, one look at the weights; benchmarks/runner.py has the time."""
    calls = Counter()

    def count(owner, name):
        function = getattr(owner, name)

        def counting(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    for owner, name in (
        (Llama, "prefill"),
        (Llama, "decode"),
        (Llama, "load_weights"),
        (torch, "compile"),
    ):
        count(owner, name)
    with Lab(max_num_seqs=4, neuron_config={"num_seqs_buckets": [1, 2, 4]}) as lab:
        assert lab.scheduler.num_batched_tokens_buckets == [128, 256]
        assert calls == {"prefill": 2, "decode": 3, "load_weights": 1}


def test_a_plain_engine_with_block_size_16(tiny_model):
    """As an engineer writes it, without Lab; twice in one process."""
    for _ in range(2):
        llm = LLM(
            str(tiny_model),
            worker_cls="neuron_sched_lab.runner.NeuronWorker",
            scheduler_cls="neuron_sched_lab.NeuronScheduler",
            additional_config={"neuron_config": {"num_seqs_buckets": [4]}},
            max_num_seqs=4,
            max_model_len=512,
            dtype="float32",
            block_size=16,
        )
        (output,) = llm.generate(
            "1997 1998 ", SamplingParams(max_tokens=9, temperature=0), use_tqdm=False
        )
        assert output.outputs[0].text == "1999 2000"
        llm.llm_engine.engine_core.shutdown()


def test_bfloat16():
    with Lab(dtype="bfloat16") as lab:
        assert runner_of(lab).kv_caches[0].k.dtype == torch.bfloat16
        lab.add("1997 1998 ", max_tokens=9)
        lab.run()
        assert lab.text["r0"] == "1999 2000"


def test_the_worker_answers_what_vllm_asks_besides():
    with Lab() as lab:
        worker = worker_of(lab)
        assert worker.get_supported_tasks() == ("generate",)
        assert isinstance(worker.get_model(), torch.nn.Module)
        assert worker.take_draft_token_ids() is None
        assert lab.llm.apply_model(lambda model: model.config.num_hidden_layers) == [3]
        assert lab.llm.reset_prefix_cache()
