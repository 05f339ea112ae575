"""Prompts whose right answer is known, for the tiny model shipped in `tiny_model/checkpoint/`.

Four kinds, because no single one shows every fault (a lost KV slot, a wrong position, an
overwritten block):

======  ==========================  ==================  =========================================
kind    prompt                      answer              what the model needs to get it right
======  ==========================  ==================  =========================================
recall  ``ux94;vn09;ri26;?ri``      ``26``              one far slot of the cache, by content
copy    ``|Hello42World|``          ``Hello42World``    every slot of the prompt, one by one
echo    ``ux94;#0110...#``          the 32 bits again   exact positions: each bit is 33 back
count   ``1997 1998 ``              ``1999 2000 2001``  the last few slots and their positions
======  ==========================  ==================  =========================================

One printable ASCII character is one token, so a prompt of N tokens is the begin-of-sequence token
and N - 1 characters. Every maker meets `num_tokens` exactly: recall, echo and count do it by
cutting the first pair or number short (``4;vn09;...``), which the model was trained on.

The makers draw any prompt; the model answers nearly all of them. `verified` gives only prompts
which the shipped checkpoint was measured to answer right. Standard library only: importing this
module loads neither torch nor vLLM.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
SYMBOLS = LETTERS + LETTERS.upper() + DIGITS
NUM_BITS = 32
NUM_COUNTED = 3  # numbers in the answer of a count prompt
LARGEST_NUMBER = 9999
MAX_MODEL_LEN = 2048

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2  # the newline is EOS
FIRST_CHAR_ID = 3  # the space; the other printable ASCII characters follow in order

# Shortest and longest prompt of each kind, in tokens with bos. The shortest holds one whole pair
# (recall), one symbol (copy), the bits alone (echo), or one whole number after a cut one (count);
# the longest leaves room for the answer within MAX_MODEL_LEN.
LIMITS = {"recall": (9, 2045), "copy": (4, 1025), "echo": (35, 2015), "count": (9, 2033)}
KINDS = tuple(LIMITS)
# `mixed` stays below it: on longer copies one wrong character in ten thousand adds up.
LONGEST_MIXED_COPY = 200


@dataclass(frozen=True)
class Task:
    """A prompt and its right answer.

    Attributes:
        kind: "recall", "copy", "echo" or "count".
        prompt: text, without the begin-of-sequence token that the tokenizer adds.
        answer: text, without the newline (EOS) or, for count, the space that follows it.
        num_tokens: length of the prompt in tokens, bos included.
    """

    kind: str
    prompt: str
    answer: str
    num_tokens: int

    @property
    def max_tokens(self) -> int:
        """Output tokens to ask for: the answer and the newline (count: the space) after it."""
        return len(self.answer) + 1

    def check(self, text: str) -> bool:
        """Whether a generated text is the answer; what comes after its end does not matter."""
        end = " " if self.kind == "count" else "\n"
        return (text + end).startswith(self.answer + end)


def encode(text: str) -> list[int]:
    """Token ids of a prompt, bos first: what the shipped tokenizer.json gives.

    Raises:
        ValueError: a character is neither a newline nor printable ASCII.
    """
    for char in text:
        if char != "\n" and not " " <= char <= "~":
            raise ValueError(
                f"text: character {char!r} is not a token; the tiny model knows the newline and "
                "printable ASCII; remove it"
            )
    return [BOS_ID] + [EOS_ID if c == "\n" else ord(c) - ord(" ") + FIRST_CHAR_ID for c in text]


def tiny_model_path() -> Path:
    """The checkpoint directory of the shipped model, in Hugging Face's layout."""
    return Path(__file__).with_name("checkpoint")


def recall(num_tokens: int, seed: int = 0) -> Task:
    """Key-value recall: pairs of two letters and two digits, then the key of one of them."""
    rng = _rng("recall", num_tokens, seed)
    pairs = draw_pairs((num_tokens - 4) // 5 + 1, rng)  # the first one is cut, maybe to nothing
    asked = pick(rng, pairs[1:])
    text = "".join(pairs) + "?" + asked[:2]
    return Task("recall", _tail(text, num_tokens), asked[2:4], num_tokens)


def copy(num_tokens: int, seed: int = 0) -> Task:
    """Copy of num_tokens - 3 letters and digits; the answer is as long."""
    rng = _rng("copy", num_tokens, seed)
    text = draw_copy_text(num_tokens - 3, rng)
    return Task("copy", f"|{text}|", text, num_tokens)


def echo(num_tokens: int, seed: int = 0) -> Task:
    """Echo of 32 bits; pairs that do not matter fill the prompt up from the front."""
    rng = _rng("echo", num_tokens, seed)
    pairs = draw_pairs((num_tokens - 35) // 5 + 1, rng)
    bits = draw_bits(rng)
    return Task("echo", _tail("".join(pairs) + f"#{bits}#", num_tokens), bits, num_tokens)


def count(num_tokens: int, seed: int = 0) -> Task:
    """Counting up by one, anywhere from 0 to 9999; the answer is the next three numbers."""
    rng = _rng("count", num_tokens, seed)
    # A number is at most five characters with its space, so this many surely end below the top.
    highest = LARGEST_NUMBER - num_tokens // 5 - 1 - NUM_COUNTED
    number = below(rng, min(10 ** pick(rng, (2, 3, 4, 4)), highest + 1))
    text = ""
    while len(text) < num_tokens - 1:
        text += f"{number} "
        number += 1
    answer = " ".join(str(number + i) for i in range(NUM_COUNTED))
    return Task("count", _tail(text, num_tokens), answer, num_tokens)


MAKERS: dict[str, Callable[[int, int], Task]] = {
    "recall": recall,
    "copy": copy,
    "echo": echo,
    "count": count,
}


def mixed(
    n: int, *, lengths: Sequence[int] = (9, 24, 40, 64, 100, 130, 200, 400, 900), seed: int = 0
) -> list[Task]:
    """Tasks whose length and kind are drawn at random. Most, not all, are answered right.

    A kind that has no prompt of the length drawn is left out of that draw, and so is copy above
    200 tokens.

    Raises:
        ValueError: no kind has a prompt of one of the `lengths`.
    """
    longest = {kind: limits[1] for kind, limits in LIMITS.items()} | {"copy": LONGEST_MIXED_COPY}
    fitting = {
        length: [kind for kind in KINDS if LIMITS[kind][0] <= length <= longest[kind]]
        for length in lengths
    }
    for length, kinds in fitting.items():
        if not kinds:
            raise ValueError(
                f"lengths: no task has a prompt of {length} tokens; lengths must be from 4 to "
                f"{max(longest.values())}; change {length}"
            )
    rng = random.Random(f"mixed/{seed}")
    tasks = []
    for i in range(n):
        length = pick(rng, lengths)
        tasks.append(MAKERS[pick(rng, fitting[length])](length, seed * 100_003 + i))
    return tasks


def verified(
    n: int | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    min_tokens: int = 1,
    max_tokens: int = MAX_MODEL_LEN,
    seed: int = 0,
) -> list[Task]:
    """Tasks which the shipped model answers right, from the list beside its weights.

    Args:
        n: how many, drawn in a random order; None gives all that fit, by kind and length.
        kinds: the kinds wanted.
        min_tokens: least length of a prompt, in tokens with bos.
        max_tokens: greatest length of a prompt, in tokens with bos.
        seed: of the draw; without effect when n is None.

    Raises:
        ValueError: fewer than n tasks fit.
    """
    entries = json.loads((tiny_model_path() / "verified.json").read_text(encoding="utf-8"))
    entries = [e for e in entries if e[0] in kinds and min_tokens <= e[1] <= max_tokens]
    if n is not None:
        if n > len(entries):
            raise ValueError(
                f"n: {n} is more than the {len(entries)} verified prompts of kinds {list(kinds)} "
                f"with {min_tokens} to {max_tokens} tokens; lower n or widen the range"
            )
        rng = random.Random(f"verified/{seed}")
        order = sorted(range(len(entries)), key=[rng.random() for _ in entries].__getitem__)
        entries = [entries[i] for i in order[:n]]
    return [MAKERS[kind](num_tokens, entry_seed) for kind, num_tokens, entry_seed in entries]


# The grammar's parts, shared with scripts/train_tiny_model.py.


def below(rng: random.Random, n: int) -> int:
    """A random integer from 0 to n - 1.

    Only Random.random() is promised to give the same numbers in every Python version, so all
    draws here go through it: a verified prompt must not change under a newer Python.
    """
    return int(rng.random() * n)


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """A random element."""
    return items[below(rng, len(items))]


def draw_pairs(n: int, rng: random.Random) -> list[str]:
    """Pairs ``ux94;`` with n different keys, n <= 676."""
    pairs: dict[str, str] = {}
    while len(pairs) < n:
        key = pick(rng, LETTERS) + pick(rng, LETTERS)
        if key not in pairs:
            pairs[key] = f"{key}{below(rng, 100):02d};"
    return list(pairs.values())


def draw_copy_text(n: int, rng: random.Random) -> str:
    """Letters and digits, n in all, in which no two neighbours occur twice in that order.

    So what follows each pair is never in doubt. With n up to 1,022 and 3,844 possible pairs, a
    few draws find a free one.
    """
    text = pick(rng, SYMBOLS)
    seen = set()
    while len(text) < n:
        two = text[-1] + pick(rng, SYMBOLS)
        if two not in seen:
            seen.add(two)
            text += two[1]
    return text


def draw_bits(rng: random.Random) -> str:
    """32 random bits as text."""
    return "".join(pick(rng, "01") for _ in range(NUM_BITS))


def _rng(kind: str, num_tokens: int, seed: int) -> random.Random:
    """The random source of one prompt, once its length is known to be possible."""
    shortest, longest = LIMITS[kind]
    if not shortest <= num_tokens <= longest:
        raise ValueError(
            f"num_tokens: {num_tokens} is not possible for {kind}; it must be from {shortest} to "
            f"{longest} tokens with bos; change num_tokens or take another kind"
        )
    return random.Random(f"{kind}/{num_tokens}/{seed}")


def _tail(text: str, num_tokens: int) -> str:
    """The last num_tokens - 1 characters: the prompt that is num_tokens long with bos."""
    return text[-(num_tokens - 1) :]
