"""Columns `instruction`, `input` (may be empty) and `output`, as the Alpaca files have them."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.conversation import Conversation, Message
from studio.data.formats.format import Format, Mapped, Values, read_cell, read_optional, share


def prove(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return the share of rows whose instruction and output are text."""
    needed = [mapping["instruction"], mapping["output"]]
    return share(sample, lambda row: all(isinstance(row.get(column), str) for column in needed))


def read(values: Values, mapping: Mapped) -> Conversation:
    """Instruction and input, with an empty line between, are the question; the output is the answer."""
    question = read_cell(values, mapping["instruction"])
    material = read_optional(values, mapping, "input")
    system = read_optional(values, mapping, "system")
    answer = read_cell(values, mapping["output"])
    front = (Message("system", system),) if system else ()
    question = f"{question}\n\n{material}" if material else question
    return Conversation(messages=(*front, Message("user", question), Message("assistant", answer)))


FORMAT = Format(
    name="alpaca",
    roles={
        "instruction": ("instruction",),
        "input": ("input", "context"),
        "output": ("output", "response", "answer", "completion"),
        "system": ("system", "system_prompt"),
    },
    required=("instruction", "output"),
    prove=prove,
    read=read,
)
