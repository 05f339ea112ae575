"""The board: each step as text, as a line for a terminal or as a panel for a notebook.

Draws a StepRecord; knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .records import PREFILL, RequestInfo, Scheduled, StepRecord

MAX_IDS = 4
MAX_ID_LENGTH = 12

LINE_HEADER = (
    f"{'step':>4}  {'state':<14}  {'ran':<32}  {'tokens':>12}  {'hidden':<20}  "
    f"{'held back':<36}  {'KV blocks':>9}"
)


def board_line(record: StepRecord) -> str:
    """Return the step as one line under LINE_HEADER."""
    tokens = f"{record.num_tokens} -> {record.num_padded_tokens}" if record.scheduled else "-"
    blocks = f"{record.kv_blocks_used}/{record.kv_blocks_total}"
    ran, hidden, held = _ran(record.scheduled), _ids(record.hidden, 2), _held(record, 1)
    return (
        f"{record.step:>4}  {record.state or record.phase:<14}  {_cell(ran, 32)}  {tokens:>12}  "
        f"{_cell(hidden, 20)}  {_cell(held, 36)}  {blocks:>9}"
    )


def board_panel(record: StepRecord, requests: dict[str, RequestInfo]) -> str:
    """Return the step as a small panel: one line a queue, one line a running request.

    Args:
        record: the step.
        requests: the trace's requests, for the lengths of their prompts.
    """
    state = record.state or record.phase
    lines = [
        f"step {record.step}: {state}" + (f" ({record.cause})" if record.cause else ""),
        f"  waiting     {_ids(record.waiting)}",
        f"  held back   {_held(record)}",
        f"  hidden      {_ids(record.hidden)}",
        "  ran         " + ("-" if not record.scheduled else ""),
    ]
    lines += [f"    {printable(s.request_id)}: {_progress(s, requests)}" for s in record.scheduled]
    lines.append(f"  KV blocks   {record.kv_blocks_used} of {record.kv_blocks_total} used")
    return "\n".join(lines)


def printable(text: str, max_length: int = MAX_ID_LENGTH) -> str:
    """Return `text` on one line, safe for a terminal, cut to `max_length` characters."""
    safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return safe if len(safe) <= max_length else safe[: max_length - 1] + "…"


def _cell(text: str, width: int) -> str:
    """Return `text` cut or filled to exactly `width` characters."""
    return (text if len(text) <= width else text[: width - 1] + "…").ljust(width)


def _progress(scheduled: Scheduled, requests: dict[str, RequestInfo]) -> str:
    if scheduled.phase != PREFILL:
        return "decode, 1 token"
    done = scheduled.num_computed_tokens + scheduled.num_tokens
    info = requests.get(scheduled.request_id)
    of = f" of {info.num_prompt_tokens}" if info else ""
    padding = scheduled.num_padded_tokens - scheduled.num_tokens
    return f"prefill to {done}{of}, {scheduled.num_tokens} tokens + {padding} padding"


def _ran(scheduled: Sequence[Scheduled]) -> str:
    if not scheduled:
        return "-"
    if len(scheduled) == 1 and scheduled[0].phase == PREFILL:
        only = scheduled[0]
        done = only.num_computed_tokens + only.num_tokens
        return f"prefill {printable(only.request_id)} [{only.num_computed_tokens}:{done}]"
    phases = sorted({s.phase for s in scheduled})
    return f"{'+'.join(phases)} {_ids([s.request_id for s in scheduled], 2)}"


def _held(record: StepRecord, limit: int = MAX_IDS) -> str:
    ids = record.held_back or record.waiting
    if not ids:
        return "-"
    total = record.num_held_back or record.num_waiting
    reason = f" ({record.hold_reason})" if record.hold_reason else ""
    return _ids(ids, limit, total) + reason


def _ids(ids: Iterable[str], limit: int = MAX_IDS, total: int | None = None) -> str:
    all_ids = list(ids)
    shown = [printable(i) for i in all_ids[:limit]]
    more = (len(all_ids) if total is None else total) - len(shown)
    return " ".join(shown + ([f"+{more}"] if more else [])) or "-"
