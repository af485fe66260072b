"""Columns `instruction`, `input` (may be empty) and `output`, as the Alpaca files have them."""

from __future__ import annotations

from studio.data.conversation import Conversation
from studio.data.formats.aliases import (
    ANSWERS,
    CHOICES,
    HISTORY,
    INPUT,
    INSTRUCTION,
    REASONING,
    SYSTEM,
    TOOLS,
)
from studio.data.formats.cells import Values, holds_setting, holds_words, is_blank, read_optional
from studio.data.formats.choices import holds_options
from studio.data.formats.context import MATERIALS, holds_material, holds_thoughts, read_thoughts, say_material
from studio.data.formats.flags import ROW_WEIGHTS, holds_weight
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import put_reasoning, put_system_first
from studio.data.formats.question_answer import holds_answer, holds_history, read_asked
from studio.data.formats.tool_calls import holds_tools, read_tools


def read(values: Values, mapping: Mapped) -> Conversation:
    """Instruction and input, with an empty line between, are the question; the output is the answer."""
    turns = read_asked(values, mapping, "instruction", "output")
    material = say_material(values.get(mapping["input"])) if "input" in mapping else ""
    if material and not is_blank(material):
        turns[-2] = turns[-2]._replace(content=f"{turns[-2].content}\n\n{material}")
    if len(mapping) == 2 + ("input" in mapping):
        return Conversation(tuple(turns))
    turns = put_system_first(turns, read_optional(values, mapping, "system"))
    turns = put_reasoning(turns, read_thoughts(values, mapping))
    tools = read_tools(values, mapping["tools"]) if "tools" in mapping else ()
    return Conversation(tuple(turns), tools=tools)


FORMAT = Format(
    name="alpaca",
    roles={
        "instruction": INSTRUCTION,
        "input": INPUT,
        "output": ("output", *(name for name in ANSWERS if name != "output"), "target", "targets"),
        "system": SYSTEM,
        "history": HISTORY,
        "tools": TOOLS,
        "reasoning": REASONING,
        "choices": CHOICES,
        "weight": ROW_WEIGHTS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("instruction", "output"),
    kinds={
        "instruction": holds_words,
        "input": holds_material,
        "output": holds_answer,
        "history": holds_history,
        "choices": holds_options,
        "system": holds_setting,
        "tools": holds_tools,
        "weight": holds_weight,
        "reasoning": holds_thoughts,
    },
    read=read,
    beats=("prompt_completion", "text", "rl"),
    rivals=("output",),
    loose=("input", "choices"),
)
