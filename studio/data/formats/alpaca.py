"""Columns `instruction`, `input` (may be empty) and `output`, as the Alpaca files have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
from studio.data.formats.column_names import simplify
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


CODES = {
    "ar": "arabic", "cn": "chinese", "cs": "czech", "de": "german", "en": "english", "es": "spanish", "fa": "persian",
    "fr": "french", "hi": "hindi", "id": "indonesian", "it": "italian", "ja": "japanese", "jp": "japanese",
    "ko": "korean", "kr": "korean", "nl": "dutch", "pl": "polish", "pt": "portuguese", "ru": "russian",
    "sv": "swedish", "th": "thai", "tr": "turkish", "uk": "ukrainian", "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip
"""Names of columns -> the language that their texts are in."""


def settle(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> dict[str, str]:
    """Return `mapping`, with two columns in two languages where the instruction names the one to translate into."""
    found = dict(mapping)
    spoken = [name for name in columns if name not in mapping.values() and _find_language(name)]
    if "instruction" not in mapping or {"input", "output"} & {*mapping} or len(spoken) != 2:
        return found
    targets = {_find_target(str(row.get(mapping["instruction"])), spoken) for row in sample}
    if len(targets) == 1 and (target := targets.pop()):
        found["output"] = target
        found["input"] = next(name for name in spoken if name != target)
    return found


def _find_language(name: str) -> str:
    return CODES.get(simplify(name), simplify(name) if simplify(name) in CODES.values() else "")


def _find_target(instruction: str, spoken: Sequence[str]) -> str:
    """Return which of two columns is in the language that is named behind `to` or `into`, or last; "" for neither."""
    words = instruction.lower()
    into = [name for name in spoken if re.search(rf"\b(?:in)?to\s+{_find_language(name)}\b", words)]
    named = [name for name in spoken if _find_language(name) in words]
    if len(into) == 1:
        return into[0]
    return max(named, key=lambda name: words.rindex(_find_language(name))) if len(named) == 2 else ""


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
        "output": lambda cell: holds_answer(cell) or (isinstance(cell, Mapping) and bool(cell)),
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
    settle=settle,
    loose=("input", "choices"),
)
