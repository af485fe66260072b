"""A prompt and its completion, each as text or as a list of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import (
    ANSWERS,
    CHOICES,
    HISTORY,
    INPUT,
    LABEL,
    PRODUCTS,
    QUESTIONS,
    REASONING,
    SOURCES,
    SYSTEM,
    TOOLS,
)
from studio.data.formats.cells import Values, holds_setting, is_blank, read_optional
from studio.data.formats.choices import counts_from, find_key, holds_options
from studio.data.formats.column_names import simplify
from studio.data.formats.context import MATERIALS, holds_thoughts, read_thoughts
from studio.data.formats.flags import ROW_WEIGHTS, holds_weight
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import finish_chat, holds_turns
from studio.data.formats.prompt_answer import has_turns, read_side
from studio.data.formats.question_answer import holds_answer, holds_asked, holds_history, read_asked
from studio.data.formats.tool_calls import check_calls, find_calls, holds_tools
from studio.data.formats.unanswered import check_answered

MATERIAL = ("context", "kontext", "contexto", "contexte", "上下文")
"""Inputs that stand beside a question and are none."""
ASKERS, ANSWERERS = ("user", "human"), ("assistant", "gpt", "bot")
"""Who speaks, where each has a column."""
SEEKERS = ("patient", "customer", "client", "caller", "seeker")
HELPERS = ("doctor", "therapist", "counselor", "counsellor", "psychologist", "lawyer", "advisor")
"""The same where nothing else is called a question, or an answer."""
COMPLETIONS = (
    "completion",
    *(name for name in ANSWERS if name != "completion"),
    "solution",
    "solutions",
    "target",
    "targets",
    *ANSWERERS,
)
PROMPTS = (
    "prompt",
    *QUESTIONS,
    *(name for name in INPUT if name not in MATERIAL),
    *ASKERS,
)


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0.3 where prompts are turns and the other column is text called answer or solution: a check's.

    0.5 where a label stands beside objects that would be learned: it says something of them.
    """
    completion = mapping.get("completion") or mapping["completion_from_1"]
    labels = [name for name in columns if name not in mapping.values() and simplify(name) in LABEL]
    facts = [row.get(completion) for row in sample[:50] if row.get(completion)]
    if labels and facts and all(isinstance(cell, Mapping) for cell in facts):
        return 0.5
    named = completion.strip().lower() in ("answer", "solution")
    rows = [row for row in sample[:50] if row.get(mapping["prompt"])]
    turned = [has_turns(row[mapping["prompt"]]) and isinstance(row.get(completion), str) for row in rows]
    return 0.3 if named and turned and all(turned) else 0.0


def read(values: Values, mapping: Mapped) -> Conversation:
    """Two texts become a `completion`; where a side is a list of turns, or turns go before, all join into a chat."""
    prompt, completion = mapping["prompt"], mapping.get("completion") or mapping["completion_from_1"]
    check_answered(values, mapping)
    if holds_turns(values.get(prompt)) or holds_turns(values.get(completion)):
        messages = read_side(values, prompt, "user") + read_side(values, completion, "assistant")
        if any(message.tool_calls or message.role == "tool" for message in messages):
            check_calls(messages)
        return finish_chat(values, mapping, messages)
    turns = read_asked(values, mapping, "prompt", "completion")
    if len(mapping) == 2 and len(turns) == 2:
        return Conversation(tuple(turns), "", "completion")
    if len(turns) > 2:
        return finish_chat(values, mapping, turns)
    question, answer = turns
    if "tools" in mapping:
        found = finish_chat(values, mapping, [question, answer])
        if found.tools and (calls := find_calls(answer.content)):
            called = found.messages[-1]._replace(content="", tool_calls=calls)
            found = found._replace(messages=(*found.messages[:-1], called))
        return found._replace(kind="chat" if found.tools else "completion")
    reasoning = read_thoughts(values, mapping)
    if not is_blank(reasoning):
        answer = answer._replace(reasoning=reasoning)
    system = read_optional(values, mapping, "system")
    front = () if is_blank(system) else (Message("system", system),)
    return Conversation((*front, question, answer), "", "completion")


def _lists(column: str, sample: Sequence[Values]) -> bool:
    """Return whether a column holds lists of texts."""
    cells = [row[column] for row in sample[:50] if row.get(column)]
    return bool(cells) and all(isinstance(cell, (list, tuple)) and len(cell) > 1 for cell in cells)


def _find_named(answer: str, free: Sequence[str], sample: Sequence[Values]) -> str:
    """Return the column of words that name the numbers of the column `answer`, one by one; else `answer` itself."""
    numbers = [row.get(answer) for row in sample[:200]]
    if not all(isinstance(one, int) or (isinstance(one, str) and one.isdigit()) for one in numbers):
        return answer
    for name in free:
        pairs = {(str(row.get(answer)), str(row.get(name))) for row in sample[:200]}
        words = {word for _, word in pairs}
        named = all(word.strip() and not word.strip().isdigit() for word in words)
        if named and 1 < len(pairs) == len(words) == len({*map(str, numbers)}) <= len(numbers) / 2:
            return name
    return answer


def settle(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> dict[str, str]:
    """Return `mapping` with the column that names the right one of its options, and how that counts them."""
    found = dict(mapping)
    free = [name for name in columns if name not in found.values()]
    answer = found.get("completion", "")
    if (
        "choices" not in found
        and answer
        and _lists(answer, sample)
        and (key := find_key(free, answer, sample))
    ):
        # A list of answers beside the number of the right one is a list of options.
        found["choices"], found["completion"] = answer, key
    if answer and "choices" not in found:
        found["completion"] = _find_named(answer, free, sample)
    if "choices" in found:
        if not (answer or "completion_from_1" in found) and (key := find_key(free, found["choices"], sample)):
            found["completion"] = key
        if "completion" in found and counts_from(found["completion"], found["choices"], sample) == 1:
            found["completion_from_1"] = found.pop("completion")
    return found


FORMAT = Format(
    name="prompt_completion",
    roles={
        "prompt": PROMPTS,
        "completion": COMPLETIONS,
        "completion_from_1": (),
        "system": SYSTEM,
        "tools": TOOLS,
        "reasoning": REASONING,
        "history": HISTORY,
        "choices": CHOICES,
        "weight": ROW_WEIGHTS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("prompt", "completion|completion_from_1"),
    kinds={
        "prompt": holds_asked,
        "completion": holds_answer,
        "completion_from_1": holds_answer,
        "system": holds_setting,
        "tools": holds_tools,
        "weight": holds_weight,
        "reasoning": holds_thoughts,
        "history": holds_history,
        "choices": holds_options,
    },
    read=read,
    doubt=doubt,
    rivals=("completion",),
    loose=("choices",),
    fallback={"prompt": (*SEEKERS, *SOURCES), "completion": (*HELPERS, *PRODUCTS)},
    said={"completion": LABEL},
    settle=settle,
)
