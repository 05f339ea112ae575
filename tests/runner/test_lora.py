"""Several LoRA adapters in one padded batch: the tokens of vLLM's own worker, and no others."""

import pytest
from safetensors.torch import load_file, save_file
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab import Lab, NeuronAsyncScheduler, NeuronScheduler
from tests.runner.lora_adapters import save_random_adapter
from tests.runner.running import SETTINGS, make_prompts, max_tokens_of, runner_of, worker_of

LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16, "max_cpu_loras": 3}
PLAIN = {"skip_tokenizer_init": True}


@pytest.fixture(scope="module")
def adapters(random_gqa4, tmp_path_factory):
    """Four adapters of other ranks and other projections; None stands for the model alone."""
    path = tmp_path_factory.mktemp("adapters")
    kinds = [
        {"rank": 8},
        {"rank": 16, "modules": ("q_proj", "v_proj")},
        {"rank": 1, "modules": ("k_proj", "up_proj"), "strength": 0.6},
        {"rank": 4, "modules": ("o_proj", "gate_proj", "down_proj"), "use_rslora": True},
    ]
    saved = [
        save_random_adapter(path / f"adapter{i}", random_gqa4, seed=i, **kind)
        for i, kind in enumerate(kinds)
    ]
    return [None, *saved]


def answer(lab, prompts, adapters):
    """Tokens of each prompt under an adapter each, in turn; some arrive while others run."""
    for i, prompt in enumerate(prompts):
        lab.add(
            prompt,
            max_tokens=max_tokens_of(i),
            ignore_eos=True,
            detokenize=False,
            adapter=adapters[i % len(adapters)],
        )
        if i % 3 == 0:
            lab.step()
    lab.run()
    tokens = lab.trace.tokens()  # in the order of first tokens, and vLLM's own lets some overtake
    return [list(tokens[f"r{i}"]) for i in range(len(prompts))]


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(30, vocab=160)


@pytest.fixture(scope="module")
def expected(random_gqa4, prompts, adapters):
    """The answers of vLLM's own scheduler and worker, which run any batch.

    With one slot more than adapters: vLLM 0.29 takes slot -1, "no adapter", for the last
    slot of the CPU worker, so that must stay empty.
    """
    lora = {**LORA, "max_loras": len(adapters), "max_cpu_loras": len(adapters)}
    with Lab(Scheduler, random_gqa4, worker="vllm", **SETTINGS, **PLAIN, **lora) as lab:
        return answer(lab, prompts, adapters)


def test_adapters_change_the_answers(random_gqa4, prompts, adapters, expected):
    """Else the tests below would pass without adapters."""
    with Lab(NeuronScheduler, random_gqa4, **SETTINGS, **PLAIN) as lab:
        alone = answer(lab, prompts, [None])
    for i, adapter in enumerate(adapters):
        mine = slice(i, None, len(adapters))
        same = [a == b for a, b in zip(alone[mine], expected[mine], strict=True)]
        assert all(same) if adapter is None else sum(same) <= 1, (i, same)


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("scheduler", [NeuronScheduler, NeuronAsyncScheduler])
def test_mixed_batches_answer_as_vllms_worker(
    random_gqa4, prompts, adapters, expected, scheduler, prefix_caching
):
    with Lab(
        scheduler, random_gqa4, enable_prefix_caching=prefix_caching, **SETTINGS, **PLAIN, **LORA
    ) as lab:
        assert answer(lab, prompts, adapters) == expected
        runner = runner_of(lab)
        assert runner.adapters.num_loads > 4  # four adapters took turns in two slots
        assert len(runner.adapters.ids) == 3
        mixed = [
            {lab.trace.requests[s.request_id].adapter for s in r.scheduled} for r in lab.trace
        ]
        assert any(len(names) == 3 for names in mixed)  # two adapters and none, in one batch


def test_compiled_graphs_serve_whatever_is_in_the_slots(random_gqa4, prompts, adapters, expected):
    """Nothing is compiled when an adapter comes: torch would raise."""
    with Lab(
        NeuronScheduler,
        random_gqa4,
        compile=True,
        neuron_config={"num_batched_tokens_buckets": [256], "num_seqs_buckets": [6]},
        **SETTINGS,
        **PLAIN,
        **LORA,
    ) as lab:
        assert answer(lab, prompts[:8], adapters) == expected[:8]


def test_another_adapter_at_the_same_prompt(random_gqa4, adapters):
    """A prefix cached under one adapter is not taken for another's."""
    prompt = list(range(3, 103))
    with Lab(NeuronScheduler, random_gqa4, **SETTINGS, **PLAIN, **LORA) as lab:
        for adapter in [None, *adapters[1:3]]:
            for _ in range(2):
                lab.add(prompt, max_tokens=6, ignore_eos=True, detokenize=False, adapter=adapter)
                lab.run()
        tokens = list(lab.trace.tokens().values())
        assert tokens[0::2] == tokens[1::2]
        assert len(set(tokens)) == 3


def test_two_adapters_of_one_name(random_gqa4, adapters, tmp_path):
    """vLLM's prefix cache knows an adapter by its name; the second found the first one's keys."""
    twin = save_random_adapter(tmp_path / adapters[1].name, random_gqa4, seed=9)
    prompt = list(range(3, 103))
    with Lab(NeuronScheduler, random_gqa4, **SETTINGS, **PLAIN, **LORA) as lab:
        for adapter in (adapters[1], twin, adapters[1]):
            lab.add(prompt, max_tokens=6, ignore_eos=True, detokenize=False, adapter=adapter)
            lab.run()
        tokens = list(lab.trace.tokens().values())
        names = [info.adapter for info in lab.trace.requests.values()]
    with Lab(NeuronScheduler, random_gqa4, **SETTINGS, **PLAIN, **LORA) as lab:
        lab.add(prompt, max_tokens=6, ignore_eos=True, detokenize=False, adapter=twin)
        lab.run()
        alone = lab.trace.tokens()["r0"]
    assert tokens == [tokens[0], alone, tokens[0]]
    assert names == ["adapter0", "adapter0/2", "adapter0"]


# Bad adapters: one clear error each, and the engine lives on.


@pytest.fixture(scope="module")
def lab(random_gqa4):
    with Lab(NeuronScheduler, random_gqa4, **SETTINGS, **PLAIN, **LORA) as lab:
        yield lab


def is_refused(lab, adapter, message):
    with pytest.raises(ValueError, match=message):
        lab.add([5, 6, 7], detokenize=False, adapter=adapter)
    lab.add([5, 6, 7], max_tokens=2, detokenize=False, ignore_eos=True)
    lab.run()


def test_no_directory(lab, tmp_path):
    is_refused(lab, tmp_path / "none", "is no directory with an adapter_config.json; give one")
    for adapter in (7, "", "a" * 5000, "\0", ["a"]):
        is_refused(lab, adapter, "adapter: .* is no directory")


def test_pickled_weights_are_not_read(lab, random_gqa4, tmp_path):
    path = save_random_adapter(tmp_path / "a", random_gqa4, seed=0)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    is_refused(lab, path, "adapter_model.safetensors is missing")


def test_too_large_a_rank(lab, random_gqa4, tmp_path):
    path = save_random_adapter(tmp_path / "a", random_gqa4, seed=0, rank=32)
    is_refused(lab, path, "LoRA rank 32 is greater than max_lora_rank 16.*raise max_lora_rank")


def test_an_adapter_of_another_model(lab, tiny_model, tmp_path):
    path = save_random_adapter(tmp_path / "a", tiny_model, seed=0)
    is_refused(lab, path, "this model needs|which has 2 layers")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": -1}, "rank `r` must be a positive"),
        ({"r": None}, "cannot be used: lora_path: .*NoneType"),
    ],
)
def test_what_vllm_does_not_serve(lab, random_gqa4, tmp_path, config, message):
    path = save_random_adapter(tmp_path / "a", random_gqa4, seed=0, **config)
    is_refused(lab, path, message)


@pytest.mark.parametrize("text", ["{", "[]", "{}", "7"])
def test_a_broken_configuration(lab, random_gqa4, tmp_path, text):
    path = save_random_adapter(tmp_path / "a", random_gqa4, seed=0)
    (path / "adapter_config.json").write_text(text)
    is_refused(lab, path, "cannot be used: lora_path: ")


def test_a_truncated_file(lab, random_gqa4, tmp_path):
    path = save_random_adapter(tmp_path / "a", random_gqa4, seed=0)
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    is_refused(lab, path, "cannot be used: lora_path: ")


def test_another_projection(lab, random_gqa4, tmp_path):
    path = save_random_adapter(tmp_path / "a", random_gqa4, seed=0)
    tensors = load_file(path / "adapter_model.safetensors")
    renamed = {name.replace("q_proj", "lm_head"): tensor for name, tensor in tensors.items()}
    save_file(renamed, path / "adapter_model.safetensors")
    is_refused(lab, path, "use an adapter of the projections q, k, v, o, gate, up and down")


def test_without_lora(adapters, random_gqa4):
    with Lab(NeuronScheduler, random_gqa4, **SETTINGS, **PLAIN) as lab:
        with pytest.raises(ValueError, match="enable_lora=True"):
            lab.add([5, 6], detokenize=False, adapter=adapters[1])
        with pytest.raises(ValueError, match="enable_lora: False"):
            worker_of(lab).list_loras()


def test_the_workers_own_methods(lab, adapters):
    lab.add([5, 6], max_tokens=1, detokenize=False, adapter=adapters[1])
    lab.run()
    worker = worker_of(lab)
    (number,) = [n for p, n in lab._adapter_numbers.items() if p == adapters[1]]
    assert number in worker.list_loras()
    assert worker.remove_lora(number)
    assert not worker.remove_lora(number)
    with pytest.raises(NotImplementedError, match="raise max_loras"):
        worker.pin_lora(number)


@pytest.mark.parametrize(
    "option", [{"fully_sharded_loras": True}, {"specialize_active_lora": True}]
)
def test_options_without_effect_are_refused(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))}: True is not supported"):
        Lab(enable_lora=True, max_lora_rank=8, **option)
