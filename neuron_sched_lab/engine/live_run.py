"""The main job: run prompts under a scheduler, step by step, and compare with vLLM's own.

Prints the board for each step, every answer beside the expected one, a summary, and whether
vLLM's own scheduler gives the same tokens for the same prompts.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings.arguments import refusal
from ..tiny_model.tasks import verified
from ..trace.board import LINE_HEADER, board_line, printable
from .watchdog import find_stall

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

    from ..trace.records import StepRecord
    from .lab import Lab

DEFAULT_MAX_TOKENS = 16
SHOWN_ANSWER_LENGTH = 60
MAX_LIVE_BATCHED_TOKENS = 2**16
"""vLLM makes tensors for so many tokens before the first step; more is a slip on a CPU."""

REQUEST_KEYS = ("prompt", "max_tokens", "expected", "request_id")


class DemoStoppedError(RuntimeError):
    """The scheduler that was watched crashed or stalled."""


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
    requests: dict[str, DemoRequest] = {}
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            request = _parse_request(_decode(line, where), where, len(requests))
            if request.request_id in requests:
                raise ValueError(
                    f"{where}: request_id: {request.request_id!r} stands twice; make ids unique"
                )
            requests[request.request_id] = request
    if not requests:
        raise ValueError(f'{path}: no request in it; give one {{"prompt": "..."}} a line')
    return list(requests.values())


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: no UTF-8 text ({error}); save the file as UTF-8") from error


def _parse_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: no JSON ({error}); give one object a line") from error
    if not isinstance(row, dict) or "prompt" not in row:
        raise ValueError(f'{where}: no "prompt"; give an object such as {{"prompt": "1 2 "}}')
    if unknown := sorted(set(row) - set(REQUEST_KEYS)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(REQUEST_KEYS)}")
    return row


def _parse_request(line: str, where: str, index: int) -> DemoRequest:
    row = _parse_row(line, where)
    prompt = row["prompt"]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        prompt = tuple(prompt)
    elif not isinstance(prompt, str):
        raise ValueError(
            f"{where}: prompt: {prompt!r:.60} must be text or a list of token ids; give one"
        )
    max_tokens = row.get("max_tokens", DEFAULT_MAX_TOKENS)
    if type(max_tokens) is not int or max_tokens < 1:
        raise ValueError(f"{where}: max_tokens: {max_tokens!r} must be an int of at least 1")
    expected = row.get("expected")
    if not isinstance(expected, (str, type(None))):
        raise ValueError(f"{where}: expected: {expected!r} must be text")
    request_id = row.get("request_id", f"r{index}")
    if not isinstance(request_id, str) or not request_id:
        raise ValueError(f"{where}: request_id: {request_id!r} must be text; or leave it out")
    _check_texts(row, where)
    return DemoRequest(request_id, prompt, max_tokens, expected)


def _check_texts(row: Mapping[str, Any], where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can hold and no tokenizer takes."""
    for key, text in row.items():
        if any("\ud800" <= char <= "\udfff" for char in str(text)):
            raise ValueError(
                f"{where}: {key}: half of a surrogate pair is no character; take it out"
            )


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

    Raises:
        ValueError: a setting is wrong; it is named.
        DemoStoppedError: the scheduler crashed or stalled.
    """
    from vllm.v1.core.sched.scheduler import Scheduler as BaseScheduler

    tokens = lab_settings.get("max_num_batched_tokens", 1)
    if tokens > MAX_LIVE_BATCHED_TOKENS:
        rule = f"at most {MAX_LIVE_BATCHED_TOKENS}"
        raise refusal("max_num_batched_tokens", tokens, rule, "lower it")
    with _open_lab(scheduler, lab_settings) as lab:
        _add_all(lab, requests)
        print(LINE_HEADER)
        while (record := _step(lab)) is not None:
            print(board_line(record))
            _check_progress(lab)
        tokens = lab.trace.tokens()
        _print_answers(requests, lab.text)
        print(f"\n{lab.trace.summary()}")
    with _open_lab(BaseScheduler, lab_settings) as base:
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


def _open_lab(scheduler: type[Scheduler], settings: Mapping[str, Any]) -> Lab:
    from .lab import Lab

    try:
        return Lab(scheduler, **settings)
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"scheduler: no engine starts with {scheduler.__name__} ({type(error).__name__}: "
            f"{error}, in {_place(error)}); its __init__ must take what vLLM's Scheduler takes and "
            f"pass it on to super().__init__()"
        ) from error


def _step(lab: Lab) -> StepRecord | None:
    try:
        return lab.step()
    except Exception as error:
        name, step = type(lab.scheduler).__name__, len(lab.trace) + 1
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DemoStoppedError(
            f"{name} crashed in step {step} ({what}, in {_place(error)})"
        ) from error


def _place(error: BaseException) -> str:
    """Return where an exception was raised, as file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _check_progress(lab: Lab) -> None:
    """Stop at the first steps that can only repeat; see `watchdog`."""
    if stall := find_stall(lab.trace):
        last = lab.trace[-1]
        left = len(last.running) + last.num_waiting + last.num_held_back
        raise DemoStoppedError(
            f"{type(lab.scheduler).__name__} stalled: steps {stall.first_step} to {last.step} ran "
            f"nothing and changed nothing though {left} requests are left; what its "
            f"can_schedule() or schedule() waits for never comes"
        )


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
