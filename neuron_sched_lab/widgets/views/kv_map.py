"""KVMap: who holds which KV blocks, the worst-case bound, and the next admission's need."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import traitlets

from ..history import Moment
from ..palette import DIM, INK, LINE, OWNERS
from ..picture import Picture, title
from ..words import count, label
from .view import View, read_static

FREE, SHARED = 0xFFFF, 0xFFFE
MAX_CELLS = 4096
"""Cells that are drawn; a larger cache has several blocks in each."""
MAX_OWNERS = 60
"""Holders that are named; the others' blocks are in the map all the same."""


def count_blocks(num_tokens: int, block_size: int) -> int:
    """Return the KV blocks that `num_tokens` tokens take."""
    return -(-num_tokens // block_size)


class Admission(NamedTuple):
    """What letting in the head of the queue would take, in KV blocks."""

    label: str
    prompt_blocks: int
    worst_case_blocks: int


class Usage(NamedTuple):
    """The cache at one moment, in blocks.

    Attributes:
        total: usable blocks.
        used: blocks in use.
        shared: blocks that several requests hold.
        worst_case: blocks of one request that grows to `max_model_len`.
        num_running: requests that hold blocks.
        bound: how many requests are let run, or None without a bound.
        admission: what the head of the queue would need, or None if nobody waits.
    """

    total: int
    used: int
    shared: int
    worst_case: int
    num_running: int
    bound: int | None
    admission: Admission | None


def get_usage(moment: Moment) -> Usage:
    """Return the cache's figures; blocks of a request that ended in the step still count."""
    config, record = moment.config, moment.record
    held = _held_blocks(moment)
    seen: set[int] = set()
    shared: set[int] = set()
    for _, blocks in held:
        shared.update(seen.intersection(blocks))
        seen.update(blocks)
    return Usage(
        total=config.kv_blocks_total,
        used=record.kv_blocks_used if record else 0,
        shared=len(shared),
        worst_case=count_blocks(config.max_model_len, config.block_size),
        num_running=len(held),
        bound=config.max_kv_concurrent,
        admission=_get_admission(moment),
    )


def _held_blocks(moment: Moment) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return moment.record.kv_blocks if moment.record else ()


def _get_admission(moment: Moment) -> Admission | None:
    record, config = moment.record, moment.config
    queue = (*record.held_back, *record.waiting) if record else ()
    head = record.held_head if record and record.held_head else next(iter(queue), None)
    key = moment.history.key(head) if head is not None else next(iter(moment.arrivals), None)
    info = moment.history.info(key) if key is not None else None
    if info is None or key in moment.ended:
        return None
    worst = min(info.num_prompt_tokens + info.max_tokens, config.max_model_len)
    return Admission(
        label(info.request_id),
        count_blocks(info.num_prompt_tokens, config.block_size),
        count_blocks(worst, config.block_size),
    )


def get_cells(moment: Moment) -> tuple[array, int]:
    """Return (owner of each cell, blocks a cell).

    An owner is a request's key modulo 60,000, or SHARED, or FREE. Cells follow the block ids.
    """
    total = moment.config.kv_blocks_total
    group = max(1, -(-total // MAX_CELLS))
    cells = array("H", [FREE]) * -(-total // group)
    for request_id, blocks in _held_blocks(moment):
        owner = moment.history.key(request_id) % 60_000
        for block in blocks:
            # vLLM's null block, 0, is not among the usable ones.
            index = (block - 1) // group
            if 0 <= index < len(cells):
                shared = group == 1 and cells[index] != FREE
                cells[index] = SHARED if shared else owner
    return cells, group


def get_bound_words(usage: Usage) -> str:
    """Return the worst-case bound in words."""
    if usage.bound is None:
        return "No bound: requests may have to be preempted."
    seats = f"{usage.num_running} of {count(usage.bound, 'request')}"
    return f"Bound: {seats} that may all grow to {count(usage.worst_case, 'block')}."


def get_admission_words(usage: Usage) -> str:
    """Return in words what an admission would need."""
    if usage.admission is None:
        return "Nobody waits to be admitted."
    who, prompt, worst = usage.admission
    free = usage.total - usage.used
    now = count(prompt, "block")
    return f"{who} needs {now} for its prompt, {worst} with its answer; {free:,} are free."


class KVMap(View):
    """The cache block by block, its holders, the worst-case bound, the next admission's need."""

    cells = traitlets.Bytes().tag(sync=True)

    _esm = traitlets.Unicode(read_static("common.js", "kv_map.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "kv_map.css")).tag(sync=True)

    def draw(self) -> None:
        """Send the cells as bytes beside the frame."""
        with self.hold_sync():
            super().draw()
            self.cells = get_cells(self.player.moment())[0].tobytes()

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the holders and the cache's figures."""
        usage = get_usage(moment)
        holders = _held_blocks(moment)
        key = moment.history.key
        return {
            "step": moment.step,
            "total": usage.total,
            "used": usage.used,
            "shared": usage.shared,
            "worst_case": usage.worst_case,
            "num_running": usage.num_running,
            "bound": usage.bound,
            "group": get_cells(moment)[1],
            "bound_words": get_bound_words(usage),
            "admission_words": get_admission_words(usage),
            "prompt_blocks": usage.admission.prompt_blocks if usage.admission else 0,
            "owners": [[key(i), label(i), len(b)] for i, b in holders[:MAX_OWNERS]],
            "more": max(len(holders) - MAX_OWNERS, 0),
        }

    def make_alt(self, moment: Moment) -> str:
        """Return the cache's figures in words."""
        usage = get_usage(moment)
        shared = f", {usage.shared:,} of them shared" if usage.shared else ""
        return (
            f"KV cache after step {moment.step}: {usage.used:,} of {count(usage.total, 'block')} "
            f"used{shared}. {get_bound_words(usage)} {get_admission_words(usage)}"
        )

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return one row a holder, with its blocks."""
        rows = [["request", "blocks", "block ids"]]
        for request_id, blocks in _held_blocks(moment):
            rows.append([label(request_id), str(len(blocks)), get_ranges(blocks)])
        used = moment.record.kv_blocks_used if moment.record else 0
        return [*rows, ["free", str(moment.config.kv_blocks_total - used), ""]]

    def make_picture(self, moment: Moment) -> Picture:
        """Return the map of the cache."""
        return draw_cache(moment)


def get_ranges(blocks: tuple[int, ...], limit: int = 12) -> str:
    """Return block ids in order as `3-5, 9`, the first `limit` ranges of them."""
    ranges: list[list[int]] = []
    for block in blocks:
        if ranges and block == ranges[-1][1] + 1:
            ranges[-1][1] = block
        else:
            ranges.append([block, block])
    shown = [f"{a}-{b}" if b > a else str(a) for a, b in ranges[:limit]]
    return ", ".join(shown + (["…"] if len(ranges) > limit else []))


def draw_cache(moment: Moment) -> Picture:
    """Draw the cache as runs of blocks with the same holder."""
    usage = get_usage(moment)
    cells, group = get_cells(moment)
    per_row = max(16, -(-len(cells) // 6))
    size = 396 / per_row
    picture = Picture(420, 212)
    title(picture, "KV cache", f"{usage.used:,} of {count(usage.total, 'block')} used")
    for row in range(-(-len(cells) // per_row)):
        _draw_row(picture, cells[row * per_row : (row + 1) * per_row], 36 + row * 20, size)
    note = f"A cell holds {count(group, 'block')}. " if group > 1 else ""
    picture.text(12, 176, note + get_bound_words(usage), size=11, max_length=74)
    picture.text(12, 196, get_admission_words(usage), size=11, max_length=74)
    return picture


def _draw_row(picture: Picture, cells: array, y: float, size: float) -> None:
    start = 0
    for end in range(1, len(cells) + 1):
        if end < len(cells) and cells[end] == cells[start]:
            continue
        owner, x, width = cells[start], 12 + start * size, (end - start) * size
        fill, name = OWNERS[owner % len(OWNERS)], str(owner)
        if owner in {FREE, SHARED}:
            fill, name = ("#f6f8fa", "") if owner == FREE else ("hatch", "shared")
        picture.rect(round(x, 1), y, round(width, 1), 17, fill, stroke=LINE)
        if len(name) * 7 < width:
            picture.text(
                round(x + width / 2, 1), y + 12.5, name, size=10, anchor="middle",
                fill=DIM if owner == FREE else INK,
            )  # fmt: skip
        start = end
