"""Questions with or without given answers: rows of a file as training understands them, each kept as it was found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.convert import understand_source
from studio.data.pipeline import refuse_unclear
from studio.data.row import Row, RowError
from studio.data.source import Source, open_source
from studio.data.understanding import Understanding

ROLES = ("system", "user", "assistant")
LINES = ("txt", "md")
"""Containers of which each line is a question."""


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """One row: the turns up to the question, and the answer that was given to it."""

    number: int
    """Its place in the file, from 1."""
    messages: tuple[Mapping[str, str], ...] = ()
    """Empty where the row holds no question: `problem` says why."""
    expected: str | None = None
    """None where no answer is given."""
    values: Mapping[str, object] = field(default_factory=dict)
    """The row as the file has it."""
    problem: Text | None = None
    prompt_ids: tuple[int, ...] = ()
    """The question as a run's tokenizer cut it, where it is one of a run's held-out rows; else ()."""
    expected_ids: tuple[int, ...] = ()

    @property
    def prompt(self) -> str:
        """What is asked last."""
        return self.messages[-1]["content"] if self.messages else ""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The rows of a file, in its order."""

    name: str
    rows: tuple[QuestionRow, ...]

    @property
    def asked(self) -> tuple[QuestionRow, ...]:
        """Those that hold a question."""
        return tuple(row for row in self.rows if row.messages)

    @property
    def content_hash(self) -> str:
        """sha256 of what is asked and what is expected."""
        digest = hashlib.sha256()
        for row in self.rows:
            said = [row.number, [dict(turn) for turn in row.messages], row.expected]
            digest.update(json.dumps(said, ensure_ascii=True).encode())
        return digest.hexdigest()


def read_questions(spec: DatasetSpec, name: str = "") -> QuestionSet:
    """Return the questions of `spec.source`: conversations up to their last answer, questions alone, lines of a text.

    Raises StudioError when it cannot be read, only a person can say which column is what, or it holds no question.
    """
    source = open_source(spec)
    rows = tuple(_read_all(source, spec))
    if not any(row.messages for row in rows):
        raise StudioError(text("test.no_prompts"), text("test.no_prompts.why"), text("test.no_prompts.fix"))
    return QuestionSet(name or source.splits["train"][0].name or Path(spec.source).name, rows)


def _read_all(source: Source, spec: DatasetSpec) -> Iterator[QuestionRow]:
    rows = (row for file in source.splits["train"] for row in file.rows())
    if source.container in LINES:
        lines = (line.strip() for row in rows for line in str(row.values.get("text", "")).splitlines())
        for number, line in enumerate(filter(None, lines), 1):
            yield QuestionRow(number, _ask(line), values={"text": line})
        return
    found = understand_source(source, spec)
    if not found.readable:
        raise refuse_unclear(found.questions)
    for number, row in enumerate(rows, 1):
        yield _read_row(number, row, found)


def _read_row(number: int, row: Row, found: Understanding) -> QuestionRow:
    try:
        conversation, _ = found.read_row(row)
    except RowError as error:
        return QuestionRow(number, values=row.values, problem=error.message)
    messages, expected = _part(conversation)
    if conversation.kind == "rl":
        cell = row.values.get(found.mapping.get("answer", ""))
        expected = cell if isinstance(cell, str) or cell is None else json.dumps(cell, ensure_ascii=False)
    problem = None
    if not messages or messages[-1].role != "user" or any(turn.role not in ROLES for turn in messages):
        messages, problem = (), text("eval.row.no_question")
    return QuestionRow(number, tuple(map(_say, messages)), expected, row.values, problem)


def _part(conversation: Conversation) -> tuple[tuple[Message, ...], str | None]:
    """Return the turns before the last answer, and that answer; of a conversation without one all turns."""
    if conversation.kind == "text":
        return (Message("user", conversation.text.strip()),), None
    turns = (*conversation.messages, *conversation.chosen)
    if turns and turns[-1].role == "assistant":
        bad = conversation.label is False  # kto: an answer that is not to be given
        return turns[:-1], None if bad else turns[-1].content
    return turns, None


def _say(turn: Message) -> Mapping[str, str]:
    return {"role": turn.role, "content": turn.content}


def _ask(words: str) -> tuple[Mapping[str, str], ...]:
    return ({"role": "user", "content": words},)
