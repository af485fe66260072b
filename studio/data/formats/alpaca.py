"""Columns `instruction`, `input` (may be empty) and `output`, as the Alpaca files have them."""

from __future__ import annotations

from studio.core.text import text
from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import ANSWERS, INPUT, INSTRUCTION, REASONING, SYSTEM, TOOLS
from studio.data.formats.cells import (
    Values,
    holds_text,
    holds_words,
    is_blank,
    is_empty,
    name_kind,
    read_cell,
    read_optional,
    shorten,
)
from studio.data.formats.format import Format, Mapped
from studio.data.formats.tool_calls import holds_tools, read_tools
from studio.data.formats.turns import put_reasoning, put_system_first
from studio.data.row import RowError


def read(values: Values, mapping: Mapped) -> Conversation:
    """Instruction and input, with an empty line between, are the question; the output is the answer."""
    question = read_cell(values, mapping["instruction"])
    material = read_optional(values, mapping, "input") if "input" in mapping else ""
    answer = read_cell(values, mapping["output"])
    if material and not is_blank(material):
        question = f"{question}\n\n{material}"
    turns = [Message("user", question), Message("assistant", answer)]
    if len(mapping) == 2 + ("input" in mapping):
        return Conversation(tuple(turns))
    if "history" in mapping:
        turns = _read_history(values, mapping["history"]) + turns
    turns = put_system_first(turns, read_optional(values, mapping, "system"))
    turns = put_reasoning(turns, read_optional(values, mapping, "reasoning"))
    tools = read_tools(values, mapping["tools"]) if "tools" in mapping else ()
    return Conversation(tuple(turns), tools=tools)


def _read_history(values: Values, column: str) -> list[Message]:
    """Return earlier turns: a list of pairs of question and answer. Raises RowError."""
    pairs = values.get(column)
    if is_empty(pairs):
        return []
    turns: list[Message] = []
    for pair in pairs if isinstance(pairs, (list, tuple)) else [None]:
        good = (
            isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        )
        if not good:
            raise RowError("E120", text("data.row.history", column=shorten(column), found=name_kind(pairs)))
        turns += [Message("user", pair[0]), Message("assistant", pair[1])]
    return turns


FORMAT = Format(
    name="alpaca",
    roles={
        "instruction": INSTRUCTION,
        "input": INPUT,
        "output": ("output", *(name for name in ANSWERS if name != "output")),
        "system": SYSTEM,
        "history": ("history", "历史"),
        "tools": TOOLS,
        "reasoning": REASONING,
    },
    required=("instruction", "output"),
    kinds={
        "instruction": holds_words,
        "input": holds_words,
        "output": holds_words,
        "system": holds_text,
        "history": lambda cell: isinstance(cell, (list, tuple)),
        "tools": holds_tools,
        "reasoning": holds_text,
    },
    read=read,
    beats=("prompt_completion", "text", "rl"),
)
