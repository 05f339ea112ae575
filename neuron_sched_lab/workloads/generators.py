"""Synthetic workloads, each from a seed: the same arguments give the same requests everywhere.

    workload = poisson(requests_per_second=4, num_requests=500, seed=0)

Lengths are given as a number, or as (median, spread): log-normal around the median, as the
lengths in public traces roughly are; `spread` is the standard deviation of the logarithm.
"""

from __future__ import annotations

import math
from random import Random

from ..settings.arguments import check_ints, check_positive, is_number
from .request import FILLER_TOKEN, HASH_BLOCK_TOKENS, WorkloadRequest
from .workload import Workload

Length = int | tuple[float, float]

PROMPT: Length = (512, 0.8)
OUTPUT: Length = (128, 0.7)
MAX_LENGTH = 1_000_000


def poisson(
    requests_per_second: float,
    num_requests: int,
    *,
    prompt: Length = PROMPT,
    output: Length = OUTPUT,
    seed: int = 0,
) -> Workload:
    """Return requests that arrive independently of each other.

    Raises:
        ValueError: the rate is not positive.
    """
    return bursty(
        requests_per_second, num_requests, burstiness=1, prompt=prompt, output=output, seed=seed
    )


def bursty(
    requests_per_second: float,
    num_requests: int,
    *,
    burstiness: float = 0.25,
    prompt: Length = PROMPT,
    output: Length = OUTPUT,
    seed: int = 0,
) -> Workload:
    """Return requests whose gaps are gamma-distributed.

    `burstiness` is the gamma distribution's shape, as in `vllm bench serve`: 1 is Poisson, below
    1 comes in bursts, above 1 more evenly.

    Raises:
        ValueError: the rate or the burstiness is not positive.
    """
    check_positive(requests_per_second=requests_per_second, burstiness=burstiness)
    check_ints(num_requests=num_requests)
    random = Random(seed)
    scale = 1 / (requests_per_second * burstiness)
    requests, now = [], 0.0
    for i in range(num_requests):
        now += random.gammavariate(burstiness, scale)
        requests.append(WorkloadRequest(f"r{i}", now, _draw(random, prompt), _draw(random, output)))
    name = "poisson" if burstiness == 1 else f"bursty {burstiness:g}"
    return Workload(f"{name} {requests_per_second:g}/s", tuple(requests))


def long_context(
    requests_per_second: float,
    num_requests: int,
    *,
    prompt: Length = (512, 0.8),
    long_prompt: Length = (16_384, 0.4),
    long_share: float = 0.05,
    output: Length = OUTPUT,
    seed: int = 0,
) -> Workload:
    """Return Poisson arrivals of short prompts, among them a share of long documents.

    It is the long ones that make decodes wait: each is several prefill steps in a row.
    """
    if not (is_number(long_share) and 0 <= long_share <= 1):
        raise ValueError(f"long_share: {long_share!r} must be between 0 and 1")
    check_positive(requests_per_second=requests_per_second)
    check_ints(num_requests=num_requests)
    random = Random(seed)
    requests, now = [], 0.0
    for i in range(num_requests):
        now += random.expovariate(requests_per_second)
        length = _draw(random, long_prompt if random.random() < long_share else prompt)
        requests.append(WorkloadRequest(f"r{i}", now, length, _draw(random, output)))
    return Workload(f"long context {long_share:.0%}", tuple(requests))


def shared_prefix(
    requests_per_second: float,
    num_requests: int,
    *,
    num_prefixes: int = 5,
    prefix_blocks: int = 4,
    prompt: Length = (256, 0.5),
    output: Length = OUTPUT,
    seed: int = 0,
) -> Workload:
    """Return Poisson arrivals whose prompts begin with one of `num_prefixes` system prompts.

    A system prompt has `prefix_blocks` blocks of HASH_BLOCK_TOKENS tokens; `prompt` is the length
    of what follows it.
    """
    check_positive(requests_per_second=requests_per_second)
    check_ints(
        num_prefixes=num_prefixes, prefix_blocks=prefix_blocks, num_requests=num_requests
    )
    random = Random(seed)
    requests, now = [], 0.0
    for i in range(num_requests):
        now += random.expovariate(requests_per_second)
        first_id = random.randrange(num_prefixes) * prefix_blocks
        requests.append(
            WorkloadRequest(
                f"r{i}",
                now,
                prefix_blocks * HASH_BLOCK_TOKENS + _draw(random, prompt),
                _draw(random, output),
                prefix_hash_ids=tuple(range(first_id, first_id + prefix_blocks)),
            )
        )
    return Workload(f"shared prefix x{num_prefixes}", tuple(requests))


def closed_loop(
    num_users: int,
    num_requests: int,
    *,
    think_seconds: float = 0.0,
    prompt: Length = PROMPT,
    output: Length = OUTPUT,
    seed: int = 0,
) -> Workload:
    """Return requests of `num_users` users, each of whom waits for the answer before the next.

    Close to `vllm bench serve --max-concurrency`: the concurrency is fixed, the rate follows.
    `think_seconds` is the mean pause (exponential) between an answer and the user's next request.
    """
    check_ints(num_users=num_users, num_requests=num_requests)
    if not (is_number(think_seconds) and 0 <= think_seconds < math.inf):
        raise ValueError(f"think_seconds: {think_seconds!r} must be 0 or more, a finite number")
    random = Random(seed)
    requests = []
    for i in range(num_requests):
        pause = random.expovariate(1 / think_seconds) if think_seconds else 0.0
        requests.append(
            WorkloadRequest(
                f"r{i}",
                0.0 if i < num_users else pause,
                _draw(random, prompt),
                _draw(random, output),
                after=None if i < num_users else f"r{i - num_users}",
            )
        )
    return Workload(f"closed loop, {num_users} users", tuple(requests))


def chat_turns(
    chats_per_second: float,
    num_chats: int,
    *,
    num_turns: int = 4,
    think_seconds: float = 10.0,
    system_tokens: int = 64,
    prompt: Length = (96, 0.6),
    output: Length = OUTPUT,
    seed: int = 0,
) -> Workload:
    """Return conversations: each turn's prompt is all that was said before, plus a new question.

    The answers in it are the tokens that a simulation generates, so with prefix caching a turn
    finds its whole history in the cache.
    A chat has 1 to `num_turns` turns, `think_seconds` on average (exponential) between an answer
    and the next question, and starts with the same `system_tokens` tokens as all others.
    """
    check_positive(chats_per_second=chats_per_second, num_turns=num_turns)
    random = Random(seed)
    requests, now = [], 0.0
    next_token = 2 + FILLER_TOKEN
    for chat in range(num_chats):
        now += random.expovariate(chats_per_second)
        history = [2] * system_tokens
        for turn in range(random.randint(1, num_turns)):
            # Every question is one new token, repeated: different from all others.
            history += [next_token] * _draw(random, prompt)
            next_token += 1
            num_output = _draw(random, output)
            requests.append(
                WorkloadRequest(
                    f"chat{chat}-{turn}",
                    now if turn == 0 else random.expovariate(1 / think_seconds),
                    len(history),
                    num_output,
                    after=f"chat{chat}-{turn - 1}" if turn else None,
                    prompt_token_ids=tuple(history),
                )
            )
            history += [FILLER_TOKEN] * num_output
    return Workload(f"chats of up to {num_turns} turns", tuple(requests))


def _draw(random: Random, length: Length) -> int:
    if isinstance(length, int):
        return length
    middle, spread = _median_and_spread(length)
    return max(1, min(MAX_LENGTH, round(random.lognormvariate(math.log(middle), spread))))


def _median_and_spread(length: object) -> tuple[float, float]:
    if isinstance(length, tuple) and len(length) == 2:  # noqa: PLR2004 (a pair)
        middle, spread = length
        if all(map(is_number, length)) and 0 < middle < math.inf and 0 <= spread < math.inf:
            return middle, spread
    raise ValueError(
        f"a length: {length!r} must be a number of tokens, or a median above 0 and a spread of at "
        f"least 0, such as (512, 0.8)"
    )
