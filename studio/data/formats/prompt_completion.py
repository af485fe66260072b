"""A prompt and its completion, each as text or as a list of turns."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import ANSWERS, INPUT, QUESTIONS, REASONING, SYSTEM, TOOLS
from studio.data.formats.cells import Values, holds_text, is_blank, read_cell, read_optional
from studio.data.formats.format import Format, Mapped
from studio.data.formats.sides import has_turns, holds_side, read_side
from studio.data.formats.tool_calls import check_calls, find_calls, holds_tools
from studio.data.formats.turns import finish_chat

MATERIAL = ("context", "kontext", "contexto", "contexte", "上下文")
"""Inputs that stand beside a question and are none."""
COMPLETIONS = (
    "completion",
    *(name for name in ANSWERS if name != "completion"),
    "solution",
    "target",
    "targets",
)
PROMPTS = (
    "prompt",
    *QUESTIONS,
    *(name for name in INPUT if name not in MATERIAL),
)


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0.3 where prompts are turns and the other column is text called answer or solution: a check's."""
    named = mapping["completion"].strip().lower() in ("answer", "solution")
    rows = [row for row in sample[:50] if row.get(mapping["prompt"])]
    turned = [
        has_turns(row[mapping["prompt"]]) and isinstance(row.get(mapping["completion"]), str) for row in rows
    ]
    return 0.3 if named and turned and all(turned) else 0.0


def read(values: Values, mapping: Mapped) -> Conversation:
    """Two texts become a `completion`; where one side is a list of turns, both join into a chat."""
    prompt, completion = mapping["prompt"], mapping["completion"]
    if has_turns(values.get(prompt)) or has_turns(values.get(completion)):
        messages = read_side(values, prompt, "user") + read_side(values, completion, "assistant")
        if any(message.tool_calls or message.role == "tool" for message in messages):
            check_calls(messages)
        return finish_chat(values, mapping, messages)
    question = Message("user", read_cell(values, prompt))
    answer = Message("assistant", read_cell(values, completion))
    if len(mapping) == 2:
        return Conversation((question, answer), "", "completion")
    if "tools" in mapping:
        found = finish_chat(values, mapping, [question, answer])
        if found.tools and (calls := find_calls(answer.content)):
            called = found.messages[-1]._replace(content="", tool_calls=calls)
            found = found._replace(messages=(*found.messages[:-1], called))
        return found._replace(kind="chat" if found.tools else "completion")
    reasoning = read_optional(values, mapping, "reasoning")
    if not is_blank(reasoning):
        answer = answer._replace(reasoning=reasoning)
    system = read_optional(values, mapping, "system")
    front = () if is_blank(system) else (Message("system", system),)
    return Conversation((*front, question, answer), "", "completion")


FORMAT = Format(
    name="prompt_completion",
    roles={
        "prompt": PROMPTS,
        "completion": COMPLETIONS,
        "system": SYSTEM,
        "tools": TOOLS,
        "reasoning": REASONING,
    },
    required=("prompt", "completion"),
    kinds={
        "prompt": holds_side,
        "completion": holds_side,
        "system": holds_text,
        "tools": holds_tools,
        "reasoning": holds_text,
    },
    read=read,
    doubt=doubt,
)
