"""A file of questions, with or without the answers that are expected, as the studio's data readers take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.convert import understand_source
from studio.data.row import Row, RowError
from studio.data.source import Source, open_source
from studio.data.understanding import Understanding

MOST = 2000
"""More questions are left out: a small model needs an hour for them."""
ROLES = ("system", "user", "assistant")
EXPECTED = ("expected", "answer", "solution", "target", "completion", "ground_truth", "label")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: the turns up to it, and the answer expected, None when none is."""

    messages: tuple[Mapping[str, str], ...]
    expected: str | None


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The questions of a file, in its order."""

    name: str
    prompts: tuple[Prompt, ...]
    left_out: int
    """Rows that could not be used, or that are beyond MOST."""


def read_prompts(path: Path, name: str = "") -> PromptSet:
    """Return the questions of a jsonl, json, csv, tsv, xlsx, parquet or text file (one question a line).

    Raises StudioError when the file cannot be read or holds no question.
    """
    found: list[Prompt] = []
    left_out = 0
    for prompt in _read_all(path):
        if prompt is None or len(found) >= MOST:
            left_out += 1
        else:
            found.append(prompt)
    if not found:
        raise StudioError(text("test.no_prompts"), text("test.no_prompts.why"), text("test.no_prompts.fix"))
    return PromptSet(name or path.name, tuple(found), left_out)


def _read_all(path: Path) -> Iterator[Prompt | None]:
    spec = DatasetSpec(source=str(path))
    source = open_source(spec)
    rows = (row for file in source.splits["train"] for row in file.rows())
    if source.container in ("txt", "md"):
        for row in rows:
            for line in str(row.values.get("text", "")).splitlines():
                if line.strip():
                    yield _ask(line.strip())
        return
    understanding = _understand(source, spec)
    for row in rows:
        yield _read_row(row, source.columns, understanding)


def _understand(source: Source, spec: DatasetSpec) -> Understanding | None:
    """Return what the file is where that is beyond doubt; a single column of text is a column of questions."""
    try:
        found = understand_source(source, spec)
    except StudioError:
        return None
    return found if found.readable and found.format.name != "text" else None


def _read_row(row: Row, columns: Sequence[str], understanding: Understanding | None) -> Prompt | None:
    if row.problem is not None:
        return None
    if understanding is None:
        cells = [row.values.get(name) for name in columns]
        first = next((cell for cell in cells if isinstance(cell, str) and cell.strip()), None)
        return _ask(first.strip(), _find_expected(row.values)) if first else None
    try:
        conversation, _ = understanding.read_row(row)
    except RowError:
        return None
    return _part(conversation)


def _part(conversation: Conversation) -> Prompt | None:
    """Return the turns before the last answer, and that answer; of a conversation without one all turns."""
    turns = [*conversation.messages, *conversation.chosen]
    expected = _find_expected(conversation.extras)
    if turns and turns[-1].role == "assistant":
        expected = turns.pop().content
    if not turns or turns[-1].role != "user" or any(turn.role not in ROLES for turn in turns):
        return None
    return Prompt(tuple(_say(turn) for turn in turns), expected)


def _find_expected(values: Mapping[str, object]) -> str | None:
    named = {str(name).strip().lower(): cell for name, cell in values.items()}
    cell = next((named[name] for name in EXPECTED if name in named), None)
    return cell if isinstance(cell, str) else None if cell is None else str(cell)


def _say(turn: Message) -> Mapping[str, str]:
    return {"role": turn.role, "content": turn.content}


def _ask(words: str, expected: str | None = None) -> Prompt:
    return Prompt(({"role": "user", "content": words},), expected)
