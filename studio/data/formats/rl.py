"""A prompt without an answer to copy: the model's own answers are scored, with further columns at hand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.data.conversation import Conversation
from studio.data.formats.aliases import ANSWERS, CHOSEN, EXPECTED, LISTS, QUESTIONS, SYSTEM, TEXT, TOOLS
from studio.data.formats.cells import Values, holds_setting, is_empty, read_optional, require
from studio.data.formats.column_names import simplify
from studio.data.formats.column_relations import hold_words
from studio.data.formats.context import MATERIALS
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import are_unanswered, ends_open, put_system_first
from studio.data.formats.prompt_answer import asks_last, has_turns, holds_side, read_question
from studio.data.formats.tool_calls import holds_tools, read_tools

CHECKABLE = re.compile(
    r"[-+$€£]?[\d.,/^%\s]+|[-+]?[\d.]+e[-+]?\d+|\(?[A-H]\)|\$?\\[a-zA-Z]+.{0,80}|true|false|yes|no"
)
"""Answers that a program can check: numbers, lettered options in brackets, formulas."""
CHECKABLE_CHARACTERS = 100
LOOKED_AT = 200
SAID = frozenset((*ANSWERS, *LISTS, *CHOSEN, *TEXT)) - {"answer", "答案"}
"""Columns whose presence says that there is something to copy."""
POSED = ("prompt", "problem")
"""Names of what is given to a model that answers itself as often as to one that learns answers."""
SURE = frozenset(EXPECTED) - {"answer", "solution", "答案"}
"""Columns that nobody calls so who wants them copied."""


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return what speaks against a prompt without an answer to copy.

    0.5 where another column holds answers, or the answer is prose; 0.6 for talks that end with an answer; 0.25 where
    only its kind, not the name of the prompt, speaks for it; 0.2 without any column to check answers against, 0.1 where
    prompts are turns and alone.
    """
    used = set(mapping.values())
    rows = sample[:LOOKED_AT]
    others = [
        name for name in columns if isinstance(name, str) and name not in used and simplify(name) in SAID
    ]
    if any(not is_empty(row.get(name)) for name in others for row in rows):
        return 0.5
    listed = simplify(mapping["prompt"]) in LISTS
    if "answer" not in mapping:
        if listed and ends_open(mapping["prompt"], rows):
            alone = are_unanswered(mapping["prompt"], rows) and _asks_alone(columns, mapping["prompt"], rows)
            return 0.0 if alone else 0.1
        return 0.6 if listed else 0.1 if _asks_alone(columns, mapping["prompt"], rows) else 0.2
    asked = [row for row in rows if not is_empty(row.get(mapping["prompt"]))]
    if asked and all(has_turns(row[mapping["prompt"]]) for row in asked):
        return 0.0
    if listed:
        return 0.6
    posed = simplify(mapping["prompt"]) in POSED
    known = simplify(mapping["answer"]) in SURE
    answers = [row.get(mapping["answer"]) for row in rows if not is_empty(row.get(mapping["answer"]))]
    checked = bool(answers) and sum(map(is_checkable, answers)) >= 0.9 * len(answers)
    if not checked:  # what is words is as often learned, beside a question and beside a prompt
        return 0.25 if posed and known else 0.5
    return 0.0 if posed or known else 0.25


def _asks_alone(columns: Sequence[str], prompt: str, rows: Sequence[Values]) -> bool:
    """Return whether prompts are turns of which the last one asks, and no other column holds words."""
    others = [name for name in columns if name != prompt]
    return asks_last(prompt, rows) and not hold_words(others, rows)


def is_checkable(cell: object) -> bool:
    """Return whether a program can tell if an answer equals this one."""
    if not isinstance(cell, str):
        return isinstance(cell, (int, float, dict, list))
    words = cell.strip()
    return len(words) <= CHECKABLE_CHARACTERS and CHECKABLE.fullmatch(words) is not None


def read(values: Values, mapping: Mapped) -> Conversation:
    """The prompt as turns; every other column goes on by its name."""
    prompt = put_system_first(read_question(values, mapping), read_optional(values, mapping, "system"))
    tools = read_tools(values, mapping["tools"]) if "tools" in mapping else ()
    if "answer" in mapping:
        require(values, mapping["answer"])
    used = {mapping[role] for role in ("prompt", "system", "tools") if role in mapping}
    extras = {name: cell for name, cell in values.items() if name not in used}
    return Conversation(tuple(prompt), kind="rl", tools=tools, extras=extras)


FORMAT = Format(
    name="rl",
    roles={
        "prompt": ("prompt", "problem", *(name for name in QUESTIONS if name != "problem"), *LISTS),
        "answer": EXPECTED,
        "system": SYSTEM,
        "tools": TOOLS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("prompt",),
    kinds={"prompt": holds_side, "system": holds_setting, "tools": holds_tools},
    read=read,
    doubt=doubt,
    loose=("answer",),
)
