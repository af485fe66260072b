"""Prompts that a template has written out, up to where the answer begins: they are read as the turns that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import INPUT, INSTRUCTION, QUESTIONS
from studio.data.formats.cells import Values, is_blank, shorten
from studio.data.formats.column_names import simplify
from studio.data.row import Row
from studio.data.transcript_styles import ENDS, STYLES, Style
from studio.data.transcripts import LOOKED_AT, SHARE, name_role, part_transcript

MARKED = ("chatml", "headers", "turns", "bars", "inst")
"""Styles whose marks stand for nothing else than a turn."""
SPOKEN = frozenset(("human", "user", "assistant", "ai", "bot", "system"))
"""Words before a colon that name a side of a talk with a model, and no field of a form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenPrompt:
    """A column of prompts with the marks of a template, which ends where an answer would begin."""

    column: str
    style: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields: none."""
        return ()

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.open_prompt", column=shorten(self.column))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its prompt as turns, or as its only question; marks behind answers go, too."""
        style = next(one for one in STYLES if one.name == self.style)
        for row in rows:
            cell = row.values.get(self.column) if row.problem is None else None
            turns = _read_open(cell, style) if isinstance(cell, str) else []
            if turns:
                values = {name: _strip_end(one) for name, one in row.values.items()}
                values[self.column] = turns[0]["content"] if len(turns) == 1 else turns
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


def find_open_prompt(columns: Sequence[str], rows: Sequence[Values]) -> OpenPrompt | None:
    """Return the column of prompts that a template has written out; None where there is none."""
    for name in columns:
        if simplify(name) not in ("prompt", *QUESTIONS, *INSTRUCTION, *INPUT):
            continue
        cells = [
            cell for row in rows[:LOOKED_AT] if isinstance(cell := row.get(name), str) and not is_blank(cell)
        ]
        for style in STYLES:
            if style.name not in (*MARKED, "words"):
                continue
            if cells and sum(bool(_read_open(cell, style)) for cell in cells) >= SHARE * len(cells):
                return OpenPrompt(column=name, style=style.name)
    return None


def _read_open(words: str, style: Style) -> list[Mapping[str, str]]:
    """Return the turns of a prompt before its answer; [] for a text that is none."""
    parts = part_transcript(words, style)
    roles = [name_role(who) for who, _, _ in parts]
    if style.name == "words" and not {who.lower() for who, _, _ in parts} <= SPOKEN:
        return []
    asked = roles[-2:] == ["user", "assistant"] and is_blank(parts[-1][2])
    turns = [{"role": role, "content": said} for role, (_, _, said) in zip(roles, parts, strict=True)][:-1]
    return turns if asked and all(turn["role"] and not is_blank(turn["content"]) for turn in turns) else []


def _strip_end(cell: object) -> object:
    """Return a text without the mark that ends a turn at its end."""
    if not isinstance(cell, str):
        return cell
    ends = [found for found in ENDS.finditer(cell) if found.end() == len(cell)]
    return cell[: ends[0].start()] if ends else cell
