"""The Llama against transformers: logits, rotary types, shards, and what it refuses."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuron_sched_lab.kernels.dispatch import REFERENCE
from neuron_sched_lab.runner.kv_cache import KVCache
from neuron_sched_lab.runner.llama import Llama
from neuron_sched_lab.runner.llama_config import LlamaConfig
from tests.runner.checkpoints import load_in_transformers, save_random_llama

BLOCK_SIZE = 16
SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 32, "tied": False}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def load(path):
    model = Llama(LlamaConfig.from_directory(path), REFERENCE, 2048, kv_segment_size=32)
    model.load_weights(path)
    return model


@torch.inference_mode()
def last_logits(model, tokens, chunk):
    """Logits after every chunk and one decode step, by a cache of shuffled blocks."""
    config = model.config
    shape = (20, config.num_key_value_heads, BLOCK_SIZE, config.head_dim)
    nan = float("nan")
    caches = [
        KVCache(torch.full(shape, nan), torch.full(shape, nan))
        for _ in range(config.num_hidden_layers)
    ]
    table = torch.randperm(19, generator=torch.Generator().manual_seed(0)).int() + 1

    def slots(positions):
        return table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

    rows = []
    for start in range(0, len(tokens) - 1, chunk):
        ids = tokens[start : min(start + chunk, len(tokens) - 1)]
        positions = torch.arange(start, start + len(ids))
        logits, greedy = model.prefill(
            torch.tensor(ids, dtype=torch.int32),
            positions.int(),
            slots(positions),
            table,
            torch.tensor([start], dtype=torch.int32),
            torch.tensor([len(ids)], dtype=torch.int32),
            None,
            caches,
        )
        rows.append(logits[0])
        assert greedy.tolist() == [logits.argmax().item()]
    position = torch.tensor([len(tokens) - 1], dtype=torch.int32)
    logits, _ = model.decode(
        torch.tensor(tokens[-1:], dtype=torch.int32),
        position,
        slots(position),
        table[None],
        position,
        None,
        caches,
    )
    return torch.stack([*rows, logits[0]])


def assert_equals_transformers(path):
    tokens = torch.randint(3, 160, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    got = last_logits(load(path), tokens, chunk=40)
    with torch.inference_mode():
        expected = load_in_transformers(path)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(got, expected[[39, 79, 119, 148, 149]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rope", ROPES.values(), ids=list(ROPES))
def test_rotary_types(tmp_path, rope):
    assert_equals_transformers(save_random_llama(tmp_path, **SHAPE, rope=rope, sharded=False))


def test_shards_and_gqa(random_gqa1, random_gqa4):
    for path in (random_gqa1, random_gqa4):
        assert (path / "model.safetensors.index.json").is_file()
        assert_equals_transformers(path)


def test_rope_as_older_versions_of_transformers_spell_it():
    config = {**BASE, "rope_theta": 500000.0}
    del config["rope_parameters"]
    assert LlamaConfig.from_hf(config).rope == {"rope_type": "default", "rope_theta": 500000.0}
    config["rope_scaling"] = {"type": "linear", "factor": 2.0}
    assert LlamaConfig.from_hf(config).rope == {
        "rope_type": "linear",
        "rope_theta": 500000.0,
        "factor": 2.0,
    }


BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 160,
    "hidden_size": 96,
    "intermediate_size": 224,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def test_defaults_of_absent_fields():
    config = LlamaConfig.from_hf({**BASE, "num_key_value_heads": None})
    assert config.num_key_value_heads == 4
    assert config.head_dim == 24
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("architectures", ["MixtralForCausalLM"], "architectures: .*Mixtral.* is not implemented"),
        ("attention_bias", True, "attention_bias: True"),
        ("mlp_bias", True, "mlp_bias: True"),
        ("hidden_act", "gelu", "hidden_act: 'gelu'"),
        ("sliding_window", 4096, "sliding_window: 4096"),
        ("quantization_config", {"bits": 4}, "quantization_config: "),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor: 0.5"),
        ("rope_parameters", {"rope_type": "yarn", "factor": 2.0}, "rope_type: 'yarn'"),
        ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0}, "rope_type: 'dynamic'"),
        ("num_key_value_heads", 3, "num_key_value_heads: 3 must divide"),
    ],
)
def test_config_fields_that_are_not_implemented(field, value, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_hf({**BASE, field: value})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_random_llama(tmp_path_factory.mktemp("whole"), **SHAPE, sharded=False)


def edited(checkpoint, tmp_path, edit):
    shutil.copytree(checkpoint, tmp_path / "edited")
    weights = load_file(tmp_path / "edited/model.safetensors")
    edit(weights)
    save_file(weights, tmp_path / "edited/model.safetensors")
    return tmp_path / "edited"


def test_a_missing_tensor_is_named(checkpoint, tmp_path):
    path = edited(checkpoint, tmp_path, lambda w: w.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"1 tensors are missing, first 'model.layers.1.mlp.up"):
        load(path)


def test_a_tensor_too_many_is_named(checkpoint, tmp_path):
    path = edited(checkpoint, tmp_path, lambda w: w.update({"model.bias": torch.zeros(3)}))
    with pytest.raises(ValueError, match="'model.bias' has no place"):
        load(path)


def test_a_wrong_shape_is_named(checkpoint, tmp_path):
    path = edited(checkpoint, tmp_path, lambda w: w.update({"model.norm.weight": torch.zeros(7)}))
    with pytest.raises(ValueError, match=r"'model.norm.weight' is \[7\].*\[96\]"):
        load(path)


def test_a_missing_shard_is_named(random_gqa1, tmp_path):
    shutil.copytree(random_gqa1, tmp_path / "copy")
    shards = sorted((tmp_path / "copy").glob("model-*.safetensors"))
    shards[0].unlink()
    with pytest.raises(ValueError, match=f"{shards[0].name} is missing"):
        load(tmp_path / "copy")


def test_an_index_cannot_lead_out_of_the_directory(random_gqa1, tmp_path):
    shutil.copytree(random_gqa1, tmp_path / "copy")
    index = tmp_path / "copy/model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"] = dict.fromkeys(content["weight_map"], "../../elsewhere.safetensors")
    index.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="elsewhere.safetensors is missing"):
        load(tmp_path / "copy")
