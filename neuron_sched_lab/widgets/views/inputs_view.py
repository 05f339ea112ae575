"""InputsView: the padded tensors that the model got in the step, number by number."""

from __future__ import annotations

from typing import Any

import traitlets

from ...trace.records import StepInputs
from ..history import Moment
from ..palette import ACTIVITIES, DIM
from ..picture import Picture, title
from ..words import count
from .view import MAX_TABLE_ROWS, View, read_static

MAX_NUMBERS = 2048
"""Numbers of a tensor that are drawn."""

NO_INPUTS = "The model runner of this engine does not show its inputs."
NO_STEP = "No step yet: after the first one its tensors appear here."
PADDING_SLOT = -1
"""What `slot_mapping` holds where there is nothing to write: padding."""


def get_inputs(moment: Moment) -> StepInputs | None:
    """Return the padded tensors of the step, or None if they are not known."""
    return moment.record.inputs if moment.record else None


def _say_missing(moment: Moment) -> str:
    return NO_STEP if moment.record is None else NO_INPUTS


def count_padding(inputs: StepInputs) -> int:
    """Return how many numbers of a tensor are padding."""
    return sum(slot == PADDING_SLOT for slot in inputs.slot_mapping)


class InputsView(View):
    """`input_ids`, `positions` and `slot_mapping` of the step, padding marked."""

    _esm = traitlets.Unicode(read_static("common.js", "inputs_view.js")).tag(sync=True)
    _css = traitlets.Unicode(read_static("common.css", "inputs_view.css")).tag(sync=True)

    def make_frame(self, moment: Moment) -> dict[str, Any]:
        """Return the tensors, or why there are none."""
        inputs = get_inputs(moment)
        if inputs is None:
            return {"step": moment.step, "missing": _say_missing(moment)}
        return {
            "step": moment.step,
            "phase": moment.record.phase if moment.record else "",
            "size": len(inputs.input_ids),
            "padding": count_padding(inputs),
            "input_ids": list(inputs.input_ids[:MAX_NUMBERS]),
            "positions": list(inputs.positions[:MAX_NUMBERS]),
            "slot_mapping": list(inputs.slot_mapping[:MAX_NUMBERS]),
        }

    def make_alt(self, moment: Moment) -> str:
        """Return the size of the tensors and their padding."""
        inputs = get_inputs(moment)
        if inputs is None:
            return _say_missing(moment)
        size = count(len(inputs.input_ids), "number")
        return f"Inputs of step {moment.step}: {size}, {count_padding(inputs)} of them padding."

    def make_table(self, moment: Moment) -> list[list[str]]:
        """Return one row a number of the tensors."""
        rows = [["index", "input_ids", "positions", "slot_mapping", "padding"]]
        inputs = get_inputs(moment)
        if inputs is None:
            return rows
        numbers = zip(*(tensor[:MAX_TABLE_ROWS] for tensor in inputs), strict=True)
        for index, (token, position, slot) in enumerate(numbers):
            mark = "padding" if slot == PADDING_SLOT else ""
            rows.append([str(index), str(token), str(position), str(slot), mark])
        return rows

    def make_picture(self, moment: Moment) -> Picture | None:
        """Return the tensors as three strips, or None if they are not known."""
        inputs = get_inputs(moment)
        return None if inputs is None else draw_inputs(moment, inputs)


def draw_inputs(moment: Moment, inputs: StepInputs) -> Picture:
    """Draw how much of the tensors is real and how much is padding, and their ends."""
    picture = Picture(840, 92)
    padding, size = count_padding(inputs), len(inputs.input_ids)
    title(picture, f"Inputs of step {moment.step}", f"{padding} of {size} are padding")
    width = 700 / max(size, 1)
    phase = moment.record.phase if moment.record else "prefill"
    colour = ACTIVITIES[phase if phase in ACTIVITIES else "prefill"].colour
    for row, name in enumerate(StepInputs._fields):
        y = 36 + row * 18
        picture.text(112, y + 11, name, size=11, anchor="end", fill=DIM)
        start = 0
        marks = [slot == PADDING_SLOT for slot in inputs.slot_mapping]
        for end in range(1, size + 1):
            if end == size or marks[end] != marks[start]:
                picture.rect(
                    round(120 + start * width, 1), y, round((end - start) * width, 1), 14,
                    "hatch" if marks[start] else colour, stroke=DIM,
                )  # fmt: skip
                start = end
    return picture
