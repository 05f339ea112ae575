"""PaddingView: what each step computed and what its padded tensor held, beside the ladders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import traitlets

from ...trace.records import DECODE, EMPTY, StepRecord
from ..history import Moment
from ..palette import ACTIVITIES, DIM, INK, LINE
from ..picture import Picture, title
from ..words import count, percent
from .view import MAX_TABLE_ROWS, View, read_static

WINDOW = 48
"""Steps that are drawn."""


def get_bar(record: StepRecord) -> tuple[int, str, int, int]:
    """Return (step, phase, actual, padded) of a step: tokens, or of a decode batch rows."""
    if record.phase == DECODE:
        rows = len(record.scheduled)
        return record.step, record.phase, rows, record.decode_batch_bucket or rows
    return record.step, record.phase, record.num_tokens, record.num_padded_tokens


def get_window(moment: Moment, size: int = WINDOW) -> Sequence[tuple[int, str, int, int]]:
    """Return the bars of the last steps up to `moment`."""
    start = max(moment.position - size, 0)
    return [get_bar(record) for record in moment.history.trace[start : moment.position]]


class PaddingView(View):
    """Actual and padded tokens of each prefill, rows and bucket of each decode, waste so far."""

    _esm = traitlets.Unicode(read_static("common.js", "padding_view.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "padding_view.css")).tag(sync=True)

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the last bars, the ladders and the totals."""
        config, totals = moment.config, moment.history.totals(moment.position)
        return {
            "step": moment.step,
            "bars": [list(bar) for bar in get_window(moment)],
            "window": WINDOW,
            "tokens_ladder": list(config.num_batched_tokens_buckets or ()),
            "seqs_ladder": list(config.num_seqs_buckets or ()),
            "max_tokens": config.max_num_batched_tokens,
            "max_seqs": config.max_num_seqs,
            "waste": percent(totals.num_padding_tokens, totals.num_padded_tokens),
            "padded": f"of {count(totals.num_padded_tokens, 'token')}",
            "fill": percent(totals.rows, totals.padded_rows),
            "rows": f"of {count(totals.padded_rows, 'row')}",
        }

    def make_alt(self, moment: Moment) -> str:
        """Return the last step's padding and the waste so far."""
        totals = moment.history.totals(moment.position)
        waste = percent(totals.num_padding_tokens, totals.num_padded_tokens)
        fill = percent(totals.rows, totals.padded_rows)
        so_far = f"Padding so far: {waste} of all tokens; decode batches {fill} full."
        if (record := moment.record) is None or record.phase == EMPTY:
            return so_far
        _, phase, actual, padded = get_bar(record)
        unit = "rows" if phase == DECODE else "tokens"
        return f"Step {record.step}, {phase}: {actual} of {padded} {unit} used. {so_far}"

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return one row a step, the newest first."""
        rows = [["step", "phase", "actual", "padded", "unit"]]
        for step, phase, actual, padded in reversed(get_window(moment, MAX_TABLE_ROWS)):
            unit = "rows" if phase == DECODE else "tokens"
            rows.append([str(step), phase, str(actual), str(padded), unit])
        return rows

    def make_picture(self, moment: Moment) -> Picture:
        """Return the bars of the last steps."""
        return draw_padding(moment)


def draw_padding(moment: Moment) -> Picture:
    """Draw the last steps: prefill tokens above, decode rows below."""
    picture = Picture(420, 212)
    config = moment.config
    totals = moment.history.totals(moment.position)
    waste = percent(totals.num_padding_tokens, totals.num_padded_tokens)
    title(picture, "Padding", f"{waste} of all tokens so far")
    bars = get_window(moment)
    token_bars = [bar for bar in bars if bar[1] not in {DECODE, EMPTY}]
    row_bars = [bar for bar in bars if bar[1] == DECODE]
    first = bars[0][0] if bars else 0
    token_top = max([bar[3] for bar in token_bars], default=config.max_num_batched_tokens)
    tokens_ladder = config.num_batched_tokens_buckets or (token_top,)
    seqs_ladder = config.num_seqs_buckets or (config.max_num_seqs,)
    _draw_bars(picture, token_bars, first, (36, 84), tokens_ladder, "tokens", "prefill")
    _draw_bars(picture, row_bars, first, (140, 50), seqs_ladder, "rows", "decode")
    return picture


def _draw_bars(
    picture: Picture,
    bars: Sequence[tuple[int, str, int, int]],
    first: int,
    place: tuple[int, int],
    ladder: Sequence[int],
    unit: str,
    activity: str,
) -> None:
    (y, height), top = place, ladder[-1]
    picture.text(50, y + 4, f"{top:,}", anchor="end", size=11, fill=DIM)
    for rung in ladder:
        picture.rect(56, round(y + height - height * rung / top, 1), 352, 0.5, LINE)
    picture.text(50, y + height, unit, anchor="end", size=11, fill=DIM)
    picture.rect(56, y + height, 352, 1, LINE)
    slot = 352 / WINDOW
    for step, _, actual, padded in bars:
        x = 56 + (step - first) * slot
        used, whole = (height * min(n / max(top, 1), 1) for n in (actual, padded))
        if padded > actual:
            picture.rect(
                round(x, 1), round(y + height - whole, 1), round(slot - 1, 1),
                round(whole - used, 1), "hatch", stroke=DIM,
            )  # fmt: skip
        picture.rect(
            round(x, 1), round(y + height - used, 1), round(slot - 1, 1), round(used, 1),
            ACTIVITIES[activity].colour, stroke=INK if used else "",
        )  # fmt: skip
