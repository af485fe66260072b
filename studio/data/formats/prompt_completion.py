"""A prompt and its completion, each as text or as a list of turns with `role` and `content`."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.conversation import Conversation, Message
from studio.data.formats.format import (
    Format,
    Mapped,
    Values,
    read_cell,
    read_optional,
    share,
    simplify,
)
from studio.data.formats.turns import find_turns, make_chat, put_system_first, read_turns

KEYS = (("role",), ("content",))


def prove(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return the share of rows whose prompt and completion are text or turns; less beside an instruction."""

    def holds(row: Values) -> bool:
        cells = [row.get(mapping[role]) for role in ("prompt", "completion")]
        return all(isinstance(cell, str) or bool(find_turns(cell)) for cell in cells)

    instructed = any(
        simplify(column) == "instruction" and column not in mapping.values() for column in columns
    )
    return share(sample, holds) - instructed


def read(values: Values, mapping: Mapped) -> Conversation:
    """Two texts become a `completion`; where one side is a list of turns, both join into a chat."""
    sides = [values.get(mapping[role]) for role in ("prompt", "completion")]
    system = read_optional(values, mapping, "system")
    if not any(isinstance(side, Sequence) and not isinstance(side, str) for side in sides):
        front = (Message("system", system),) if system else ()
        prompt = Message("user", read_cell(values, mapping["prompt"]))
        completion = Message("assistant", read_cell(values, mapping["completion"]))
        return Conversation(messages=(*front, prompt, completion), kind="completion")
    messages = []
    for role, side, speaker in zip(("prompt", "completion"), sides, ("user", "assistant"), strict=True):
        if isinstance(side, str):
            messages.append(Message(speaker, read_cell(values, mapping[role])))
        else:
            messages += read_turns(values, mapping[role], *KEYS)
    return make_chat(put_system_first(messages, system))


FORMAT = Format(
    name="prompt_completion",
    roles={
        "prompt": ("prompt", "question", "query", "problem", "input"),
        "completion": ("completion", "response", "answer", "solution", "output"),
        "system": ("system", "system_prompt"),
    },
    required=("prompt", "completion"),
    prove=prove,
    read=read,
)
