"""What a format is: the roles that its columns play, how it is recognised, and how a row becomes a Conversation."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from studio.core.text import Text, text
from studio.data.conversation import Conversation
from studio.data.formats.cells import Values, is_empty, shorten, show_names
from studio.data.formats.notes import Note, note_turns

Mapped = Mapping[str, str]
"""Role -> column name."""
Kind = Callable[[object], bool]
"""Whether a cell that is not empty can play a role."""
NAME_CHARACTERS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Which column plays which role; `missing` and `doubtful` name what stands in the way."""

    mapping: Mapped
    missing: tuple[str, ...]
    """Required roles without a column; of alternatives the first."""
    doubtful: Mapping[str, tuple[str, ...]]
    """Roles that more than one column could play; they are not in `mapping`."""
    notes: tuple[Text, ...] = ()
    """Why one column was taken where two have fitting names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How well a data set fits a format."""

    confidence: float
    """0..1"""
    reason: Text
    match: Match


def never_doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0: nothing speaks against the format."""
    return 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One way to write examples."""

    name: str
    roles: Mapping[str, tuple[str, ...]]
    """Role -> the column names that it goes by, simplified; the first is its exact name."""
    required: tuple[str, ...]
    """Roles that must have a column; "a|b" where one of both will do."""
    kinds: Mapping[str, Kind]
    """Role -> what its cells must be. Roles that are not here take anything."""
    read: Callable[[Values, Mapped], Conversation]
    """Turn one row into a Conversation. Raises RowError."""
    notes: Callable[[Conversation], tuple[Note, ...]] = note_turns
    """What the person should know of a row that is used: pairs of code and Text."""
    doubt: Callable[[Sequence[str], Mapped, Sequence[Values]], float] = never_doubt
    """(columns, mapping, sample) -> 0..1 to take off, for what contradicts this format."""
    beats: tuple[str, ...] = ()
    """Formats whose columns are a part of this one's: when this one fits they lose."""
    loose: tuple[str, ...] = ()
    """Roles for which the first of several columns is good enough, since nothing is lost with the others."""
    adopt: Callable[[Sequence[str], Sequence[Values]], dict[str, str]] = field(
        default=lambda columns, sample: {}
    )
    """(columns, sample) -> a mapping by values alone, for a data set in which no name is known."""

    def match(
        self, columns: Sequence[str], chosen: Mapped | None = None, sample: Sequence[Values] = ()
    ) -> Match:
        """Return which of `columns` play this format's roles; what a person has `chosen` wins ("": no column)."""
        chosen = chosen or {}
        taken = {column for column in chosen.values() if column}
        index: dict[str, list[str]] = {}
        for name in columns:
            if isinstance(name, str) and name not in taken:
                index.setdefault(simplify(name), []).append(name)
        mapping: dict[str, str] = {}
        doubtful: dict[str, tuple[str, ...]] = {}
        notes: list[Text] = []
        for role, aliases in self.roles.items():
            if role in chosen:
                if chosen[role]:
                    mapping[role] = chosen[role]
                continue
            found = [name for alias in aliases for name in index.get(alias, ())]
            if len(found) > 1 and role not in self.loose:
                found, said = self._compare(role, found, sample)
                notes += said
            if len(found) > 1 and role not in self.loose:
                doubtful[role] = tuple(found)
            elif found:
                mapping[role] = found[0]
        missing = tuple(
            roles.split("|")[0]
            for roles in self.required
            if not any(role in mapping or role in doubtful for role in roles.split("|"))
        )
        if missing and not chosen and sample:
            adopted = self.adopt(columns, sample)
            mapping |= adopted
            missing = tuple(role for role in missing if role not in adopted)
        return Match(mapping=mapping, missing=missing, doubtful=doubtful, notes=tuple(notes))

    def score(self, columns: Sequence[str], sample: Sequence[Values], chosen: Mapped | None = None) -> Score:
        """Return how well these columns and rows fit.

        0.5 for all required columns, up to 0.4 for what the values look like, 0.1 for exact column names, less what
        contradicts the format. Where no value looks like it, it is below 0.5.
        """
        match = self.match(columns, chosen, sample)
        if match.missing:
            reason = text("data.format.missing", format=self.name, roles=list(match.missing))
            return Score(confidence=0.0, reason=reason, match=match)
        # A role in doubt is judged by the first of its columns.
        mapping = {role: names[0] for role, names in match.doubtful.items()} | dict(match.mapping)
        fits, against, parts = self.prove(mapping, sample)
        reason = text(
            f"data.format.{self.name}.reason",
            columns=show_names([mapping[role] for role in self.roles if role in mapping]),
            fits=fits,
            seen=len(sample),
        )
        if not fits and (against or not parts):
            return Score(confidence=0.3, reason=reason, match=match)
        shape = fits / (fits + against) if fits else 0.4
        if (
            shape >= 0.5
        ):  # Broken rows are counted one by one later; the rest says well enough what the file is.
            shape = 0.75 + shape / 4
        exact = all(
            any(
                role in mapping and simplify(mapping[role]) == self.roles[role][0]
                for role in roles.split("|")
            )
            for roles in self.required
        )
        confidence = 0.5 + 0.4 * shape + 0.1 * exact - self.doubt(columns, mapping, sample)
        return Score(confidence=round(max(0.0, confidence), 3), reason=reason, match=match)

    def prove(self, mapping: Mapped, sample: Sequence[Values]) -> tuple[int, int, int]:
        """Return how many rows hold all that is required, how many something else in its place, how many a part of it.

        Cells that are absent or empty say nothing.
        """
        groups = [
            [(mapping[role], self.kinds.get(role)) for role in roles.split("|") if role in mapping]
            for roles in self.required
        ]
        fits = against = parts = 0
        for row in sample:
            told = 0
            for group in groups:
                said = False
                for column, holds in group:
                    cell = row.get(column)
                    if is_empty(cell):
                        continue
                    if holds is not None and not holds(cell):
                        break
                    said = True
                else:
                    told += said
                    continue
                against += 1
                break
            else:
                fits += told == len(groups)
                parts += 0 < told < len(groups)
        return fits, against, parts

    def _compare(self, role: str, names: list[str], sample: Sequence[Values]) -> tuple[list[str], list[Text]]:
        """Return `names` without those that cannot be meant: empty, of another kind, or the same as the first."""
        if not sample:
            return names, []
        kind = self.kinds.get(role, lambda cell: True)
        notes: list[Text] = []
        left = [
            name
            for name in names
            if any(not is_empty(row.get(name)) and kind(row.get(name)) for row in sample)
        ]
        if not left:
            return names[:1], []
        notes += [text("data.sniff.empty", column=shorten(name)) for name in names if name not in left]
        first, *others = left
        same = [name for name in others if all(row.get(name) == row.get(first) for row in sample)]
        notes += [text("data.sniff.same", column=shorten(name), kept=shorten(first)) for name in same]
        return [name for name in left if name not in same], notes


def simplify(name: str) -> str:
    """Return a column name in lower case with underscores; without blanks and invisible signs around it."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS:
        return ""
    name = name.strip("\ufeff\u200b\u200c\u200d\u2060 \t\r\n").lower()
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).strip()
    return name.replace(" ", "_").replace("-", "_")
