"""The main job: run prompts under a scheduler, step by step, and compare with vLLM's own.

Prints the board for each step, every answer beside the expected one, a summary, and whether
vLLM's own scheduler gives the same tokens for the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .board import LINE_HEADER, board_line, printable
from .tasks import verified

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from .session import Lab

DEFAULT_MAX_TOKENS = 16
SHOWN_ANSWER_LENGTH = 60
REQUEST_KEYS = ("prompt", "max_tokens", "expected", "request_id")


@dataclass(frozen=True)
class DemoRequest:
    """One prompt of a demo.

    Attributes:
        request_id: its name on the board.
        prompt: text or token ids.
        max_tokens: most tokens to generate.
        expected: the right answer, where one is known.
    """

    request_id: str
    prompt: str | tuple[int, ...]
    max_tokens: int = DEFAULT_MAX_TOKENS
    expected: str | None = None

    def is_answered_by(self, text: str) -> bool | None:
        """Tell whether `text` gives the expected answer and ends there; None if none is known."""
        if self.expected is None:
            return None
        rest = text[len(self.expected) :]
        return text.startswith(self.expected) and (not rest or rest[0].isspace())


def default_requests() -> list[DemoRequest]:
    """Return prompts of mixed kinds and lengths that the shipped model answers right."""
    short = verified(6, max_tokens=200, seed=1)
    long = verified(4, min_tokens=300, max_tokens=1000, seed=1)
    # Long prompts between short ones: the short ones' decodes are then seen to wait.
    tasks = [*short[:3], *long[:2], *short[3:], *long[2:]]
    return [
        DemoRequest(f"{task.kind}{i}", task.prompt, task.max_tokens, task.answer)
        for i, task in enumerate(tasks)
    ]


def read_requests(path: str | Path) -> list[DemoRequest]:
    """Read prompts from JSON lines: `{"prompt": ..., "max_tokens": 16, "expected": "..."}`.

    Raises:
        ValueError: names the file, the line, what is wrong and the fix.
    """
    requests: list[DemoRequest] = []
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                requests.append(_parse_request(line, f"{path}, line {number}", len(requests)))
    if not requests:
        raise ValueError(f'{path}: no request in it; give one {{"prompt": "..."}} a line')
    return requests


def _parse_request(line: str, where: str, index: int) -> DemoRequest:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: no JSON ({error}); give one object a line") from error
    if not isinstance(row, dict) or "prompt" not in row:
        raise ValueError(f'{where}: no "prompt"; give an object such as {{"prompt": "1 2 "}}')
    if unknown := sorted(set(row) - set(REQUEST_KEYS)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(REQUEST_KEYS)}")
    prompt = row["prompt"]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        prompt = tuple(prompt)
    elif not isinstance(prompt, str):
        raise ValueError(f"{where}: prompt: must be text or a list of token ids")
    max_tokens = row.get("max_tokens", DEFAULT_MAX_TOKENS)
    if type(max_tokens) is not int or max_tokens < 1:
        raise ValueError(f"{where}: max_tokens: {max_tokens!r} must be an int of at least 1")
    expected = row.get("expected")
    if not isinstance(expected, (str, type(None))):
        raise ValueError(f"{where}: expected: {expected!r} must be text")
    request_id = str(row.get("request_id", f"r{index}"))
    return DemoRequest(request_id, prompt, max_tokens, expected)


def run_demo(
    scheduler: type[Scheduler], requests: Sequence[DemoRequest], **lab_settings: Any
) -> bool:
    """Run `requests` live and print what happens; see the module.

    Args:
        scheduler: the class to watch.
        requests: all are added before the first step.
        lab_settings: passed to Lab.

    Returns:
        True if vLLM's own scheduler gave the same tokens.
    """
    from vllm.v1.core.sched.scheduler import Scheduler as BaseScheduler

    from .session import Lab

    with Lab(scheduler, **lab_settings) as lab:
        _add_all(lab, requests)
        print(LINE_HEADER)
        while (record := lab.step()) is not None:
            print(board_line(record))
        tokens = lab.trace.tokens()
        _print_answers(requests, lab.text)
        print(f"\n{lab.trace.summary()}")
    with Lab(BaseScheduler, **lab_settings) as base:
        _add_all(base, requests)
        base.run()
        same = base.trace.tokens() == tokens
        print("\nFor comparison, the same prompts under vLLM's own scheduler:")
        print(base.trace.summary())
    verdict = "the same tokens" if same else "DIFFERENT tokens"
    print(
        f"\n{scheduler.__name__} and vLLM's Scheduler gave {verdict} for {len(requests)} prompts."
    )
    return same


def _add_all(lab: Lab, requests: Sequence[DemoRequest]) -> None:
    for request in requests:
        lab.add(request.prompt, max_tokens=request.max_tokens, request_id=request.request_id)


def _print_answers(requests: Sequence[DemoRequest], text: dict[str, str]) -> None:
    words = {True: "right", False: "WRONG", None: "no answer known"}
    print(f"\n{'request':<12}  {'answer':<{SHOWN_ANSWER_LENGTH}}  expected")
    for request in requests:
        answer = text[request.request_id]
        verdict = words[request.is_answered_by(answer)]
        expected = "" if request.expected is None else request.expected
        print(
            f"{printable(request.request_id):<12}  "
            f"{printable(answer, SHOWN_ANSWER_LENGTH):<{SHOWN_ANSWER_LENGTH}}  "
            f"{printable(expected, SHOWN_ANSWER_LENGTH)} ({verdict})"
        )
