"""The shipped checkpoint: its bytes, its tokenizer, and that it answers the verified prompts.

Never retrains: the same recipe on another machine gives other bytes (scripts/train_tiny_model.py).
"""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from neuron_sched_lab.tiny_model import tasks
from tests.engine.plain_llama import PlainLlama

MODEL = tasks.tiny_model_path()
TEXTS = [
    "ux94;vn09;?ux",
    "|Hello42World|",
    "a b  c\nd\n",
    " leading and trailing ",
    "".join(map(chr, range(32, 127))),
]


@pytest.fixture(scope="module")
def llama() -> PlainLlama:
    return PlainLlama(MODEL)


def test_files_match_their_sums():
    lines = (MODEL / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    present = {p.name for p in MODEL.iterdir()} - {"SHA256SUMS", "README.md"}
    assert set(sums) == present
    for name, digest in sums.items():
        assert hashlib.sha256((MODEL / name).read_bytes()).hexdigest() == digest, name


def test_weights_are_the_documented_ones(llama):
    assert sum(w.numel() for w in llama.weights.values()) == 476_032
    assert {str(w.dtype) for w in llama.weights.values()} == {"torch.float32"}


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trip(text):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == tasks.encode(text)
    assert tokenizer.decode(ids[1:], skip_special_tokens=False) == text


def test_auto_tokenizer_loads_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(MODEL))
    ends = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert ends == (tasks.PAD_ID, tasks.BOS_ID, tasks.EOS_ID)
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert ids == tasks.encode(text)
        assert tokenizer.decode(ids[1:]) == text


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_model_answers_every_verified_prompt(llama, kind):
    """Greedy, in one forward a prompt: each right token must be the best after those before it."""
    wrong = []
    for task in tasks.verified(kinds=[kind]):
        end = " " if kind == "count" else "\n"
        ids = tasks.encode(task.prompt + task.answer + end)
        best = llama.logits(ids[:-1])[task.num_tokens - 1 :].argmax(-1)
        if best.tolist() != ids[task.num_tokens :]:
            wrong.append((kind, task.num_tokens))
    assert not wrong, Counter(wrong)


def test_a_wrong_position_shows(llama):
    """The point of the model: one token at a wrong position loses most recall answers."""
    found = tasks.verified(kinds=["recall"], min_tokens=100, max_tokens=300)
    right = 0
    for task in found:
        # Prompt at its own positions, then the first answer token one too far.
        ids = tasks.encode(task.prompt + task.answer[0])
        shifted = [*range(task.num_tokens), task.num_tokens + 1]
        right += llama.logits(ids, shifted)[-1].argmax().item() == tasks.encode(task.answer)[2]
    assert right <= len(found) // 2
