"""An answer with a label that says whether it is a good one: prompt, completion and label, or turns and label."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.core.i18n import text
from studio.data.conversation import Conversation
from studio.data.formats.aliases import ANSWERS, INSTRUCTION, LABEL, LISTS, QUESTIONS, SYSTEM, TOOLS
from studio.data.formats.cells import (
    Values,
    holds_setting,
    holds_text,
    is_empty,
    require,
    require_words,
    shorten,
)
from studio.data.formats.column_names import part_name
from studio.data.formats.context import MATERIALS
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import finish_chat, holds_turns, read_turns
from studio.data.formats.prompt_answer import holds_side, read_question, read_side
from studio.data.formats.tool_calls import check_calls, holds_tools
from studio.data.row import RowError
from studio.data.row_codes import RowCode

REASONED = re.compile(r"([^\W\d_]+(?: (?:up|down))?)\s*(?:[:;,.(]|\s[-–—])\s.*", re.S)
"""A verdict with its reason behind a sign: `no: it can be said better`."""
LABELS = {
    **dict.fromkeys(
        (
            "true",
            "1",
            "yes",
            "y",
            "good",
            "up",
            "thumbs up",
            "thumbs_up",
            "thumbsup",
            "👍",
            "desirable",
            "positive",
        )
        + ("chosen", "accepted", "liked", "like", "correct", "是", "好", "对", "真", "1.0"),
        True,
    ),
    **dict.fromkeys(
        (
            "false",
            "0",
            "no",
            "n",
            "bad",
            "down",
            "thumbs down",
            "thumbs_down",
            "thumbsdown",
            "👎",
            "undesirable",
        )
        + (
            "negative",
            "rejected",
            "disliked",
            "dislike",
            "incorrect",
            "wrong",
            "否",
            "坏",
            "不好",
            "错",
            "假",
            "0.0",
        ),
        False,
    ),
}
"""Words that people write for yes and no, in lower case."""
NEITHER = "neither"
"""The label of an answer that nobody voted on."""
FAULTS = frozenset(
    "hallucination hallucinated error errors wrong incorrect harmful unsafe toxic bad faulty".split()
)
"""Words in the names of flags that are true for worse answers: `is_hallucination`, `has_error`."""


def find_label(cell: object) -> bool | None:
    """Return the truth value that a cell stands for; None when it is none."""
    if isinstance(cell, (bool, int, float)):
        return bool(cell) if cell in (0, 1) else None
    if not isinstance(cell, str):
        return None
    said = cell.strip().lower()
    reasoned = REASONED.fullmatch(said)
    return LABELS.get(reasoned[1] if reasoned else said)


def names_fault(column: str) -> bool:
    """Return whether a column says, by its name, that something is wrong with the answers it holds true for."""
    words = {*part_name(column)}
    return bool(words & FAULTS and words & {"is", "has"}) and not words & {"prompt", "question"}


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0.5 where less than half of the labels are yes or no, all are numbers of classes, or feedback is learned.

    A verdict beside feedback is of the work that both are about.
    """
    if {"feedback", "critique"} & {*part_name(mapping.get("completion", ""))}:
        return 0.5
    found = [row.get(mapping["label"]) for row in sample if not is_empty(row.get(mapping["label"]))]
    found = [cell for cell in found if cell != NEITHER]
    good = sum(find_label(cell) is not None for cell in found)
    classes = {str(cell) for cell in found}
    if len(classes) > 2 and all(cell.isdigit() for cell in classes):
        return 0.5
    return 0.0 if good and good >= len(found) / 2 else 0.5


def read(values: Values, mapping: Mapped) -> Conversation:
    """All turns, of which the last is the answer, and the label."""
    label = read_label(values, mapping["label"]) != names_fault(mapping["label"])
    told = "messages" in mapping and not is_empty(values.get(mapping["messages"]))
    apart = "completion" in mapping and ("prompt" in mapping or "input" in mapping)
    if told or not apart:
        messages = read_turns(values, mapping["messages"])
        if "completion" in mapping and not is_empty(values.get(mapping["completion"])):
            messages += read_side(values, mapping["completion"], "assistant")
    else:
        messages = read_question(values, mapping) + read_side(values, mapping["completion"], "assistant")
    if any(message.tool_calls or message.role == "tool" for message in messages):
        check_calls(messages)
    return finish_chat(values, mapping, messages)._replace(kind="kto", label=label)


def read_label(values: Values, column: str) -> bool:
    """Return the label of a row. Raises RowError: absent, null, empty, UNDECIDED, or no label at all (BAD_LABEL)."""
    cell = require(values, column)
    if isinstance(cell, str):
        require_words(cell, column)
    if cell == NEITHER:
        raise RowError(RowCode.UNDECIDED, text("data.row.no_vote", column=shorten(column)))
    label = find_label(cell)
    if label is None:
        raise RowError(
            RowCode.BAD_LABEL, text("data.row.label", column=shorten(column), found=shorten(cell, 40))
        )
    return label


FORMAT = Format(
    name="kto",
    roles={
        "prompt": ("prompt", *QUESTIONS, *INSTRUCTION),
        "input": ("input",),
        "completion": ("completion", *(name for name in ANSWERS if name != "completion")),
        "messages": LISTS,
        "label": LABEL,
        "system": SYSTEM,
        "tools": TOOLS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("prompt|input|messages", "completion|messages", "label"),
    kinds={
        "prompt": holds_side,
        "input": holds_text,
        "completion": holds_side,
        "messages": holds_turns,
        "label": lambda cell: isinstance(cell, (str, int, float)),
        "system": holds_setting,
        "tools": holds_tools,
    },
    read=read,
    doubt=doubt,
    said={"label": ("target", "relevance", "relevant", "match")},
    beats=("messages", "sharegpt", "prompt_completion", "alpaca", "text", "rl"),
)
