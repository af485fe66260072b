"""What a data set was understood to be: its format, the roles of its columns, how sure, and what to ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from studio.core.i18n import Text
from studio.data.conversation import Conversation
from studio.data.formats.format import Format, Mapped
from studio.data.formats.notes import Note
from studio.data.open_question import Question
from studio.data.row import Row, RowError


@dataclass(frozen=True, kw_only=True, slots=True)
class Understanding:
    """What a data set is."""

    format: Format | None
    """None when no format fits: `questions` says what to answer."""
    mapping: Mapped
    """Role -> column. A role that two columns could play is in `questions` instead."""
    confidence: float
    """0..1; 1 when the person said so."""
    reason: Text
    """Which columns were found, and what their values showed."""
    questions: tuple[Question, ...]
    """What only the person can answer; nothing is learned before."""
    ranked: tuple[tuple[str, float, Text], ...]
    """(format, score, reason) of every format that was tried, the best first."""
    columns: tuple[str, ...] = ()
    """The columns that were looked at; each has its role, or none."""
    declined: tuple[str, ...] = ()
    """Roles of which the person said that no column has them."""

    @property
    def readable(self) -> bool:
        """Whether rows can be read already: the format is known and no role that it needs is in doubt."""
        return self.format is not None and not _find_missing(self.format, self.mapping)

    def extend(self, columns: Sequence[str]) -> Understanding:
        """Return this with the optional roles of `columns` that appear late: tools, system, reasoning, ...

        Roles that have a column, and those in doubt, stay as they are.
        """
        if self.format is None:
            return self
        asked = {question.field.removeprefix("data.mapping.") for question in self.questions} | {
            *self.declined
        }
        seen = {*self.columns, *self.mapping.values()}
        free = [name for name in columns if name not in seen]
        if not free:
            return self
        needed = {role for roles in self.format.required for role in roles.split("|")}
        held = {role: name for role, name in self.mapping.items() if role in needed}
        late = self.format.match((*held.values(), *free), held).mapping
        late = {
            role: name
            for role, name in late.items()
            if role not in self.mapping and role not in asked and role not in needed
        }
        return dataclasses.replace(self, mapping={**self.mapping, **late}) if late else self

    def read_row(self, row: Row) -> tuple[Conversation, tuple[Note, ...]]:
        """Return the Conversation of a row and what the person should know of it. Raises RowError.

        Only where `readable`.
        """
        if row.problem is not None:
            raise RowError(row.problem.code, row.problem.message)
        conversation = self.format.convert(row.values, self.mapping)
        return conversation, self.format.notes(conversation)


def _find_missing(format: Format, mapping: Mapped) -> list[str]:
    """Return the required roles, or groups of them, that have no column."""
    return [roles for roles in format.required if not any(role in mapping for role in roles.split("|"))]
