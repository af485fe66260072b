"""What a format is: the roles that its columns play, how it is recognised, and how a row becomes a Conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from studio.core.i18n import Text, text
from studio.data.conversation import Conversation
from studio.data.formats.aliases import TEXT
from studio.data.formats.cells import (
    Values,
    is_address,
    is_asking,
    is_code,
    is_empty,
    is_handle,
    shorten,
    show_names,
)
from studio.data.formats.choices import find_key, find_series
from studio.data.formats.column_names import drop_guesses, drop_versions, find_core, list_words, simplify
from studio.data.formats.column_relations import (
    CONSTANT_ROWS,
    count_rows,
    find_siblings,
    find_stand_in,
    heads_text,
    hold_words,
    holds_all,
    is_constant,
    is_quoted,
    is_sparse,
    is_state,
    is_wordless,
    judges,
    says_the_same,
    sorts,
)
from studio.data.formats.context import MATERIALS, find_material, is_numbers, put_material
from studio.data.formats.flags import weigh_row, weighs_rows
from studio.data.formats.notes import Note, note_turns

Mapped = Mapping[str, str]
"""Role -> column name."""
Kind = Callable[[object], bool]
"""Whether a cell that is not empty can play a role."""
YIELDING = ("query",)
"""Names that give way to any other of the same role: beside a `question`, a `query` is what answers it."""
ASKING = ("prompt", "instruction", "question")
"""Roles, and names of columns, that may hold code all the same: to be explained, mended, translated."""
SAID = ("completion", "output", "answer")
"""Roles of what is said to a question."""
PROGRAM_NAME = re.compile(r"[\w.]+[-_/][\w./-]*|\w*\d\w*")
LOOKED_AT = 50


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
    fallback: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Role -> names that play it only where no other column does: an `article` is the prompt beside a `summary`."""
    said: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """As `fallback`, but only where the person said that the data has this format."""
    beside: Literal["named", "chosen", "never"] = "named"
    """Whether columns join its rows as material: by their names, only where a person says so, or not at all."""
    rivals: tuple[str, ...] = ()
    """Roles for which also a column whose name only resembles is asked about: two answers, of which one is learned."""
    settle: Callable[[Sequence[str], Mapped, Sequence[Values]], dict[str, str]] = field(
        default=lambda columns, mapping, sample: dict(mapping)
    )
    """(columns, mapping, sample) -> the mapping as the values make it."""
    worded: bool = True
    """Whether its columns hold words, and not numbers for them."""
    adopt: Callable[[Sequence[str], Sequence[Values]], dict[str, str]] = field(
        default=lambda columns, sample: {}
    )
    """(columns, sample) -> a mapping by values alone, for a data set in which no name is known."""

    def match(
        self,
        columns: Sequence[str],
        chosen: Mapped | None = None,
        sample: Sequence[Values] = (),
        *,
        said: bool = False,
    ) -> Match:
        """Return which of `columns` play this format's roles; what a person has `chosen` wins ("": no column).

        said: whether the person said that the data has this format.
        """
        chosen = chosen or {}
        series = find_series(columns) if "choices" not in chosen else ()
        if "choices" not in self.roles:
            # Options that another column chooses from are no answers.
            told = bool(series) and bool(sample) and bool(find_key(columns, series[0], sample))
            return self._match(columns, chosen, sample, said, series if told else ())
        if series and not {*series} & {*chosen.values()}:
            found = self._match(columns, {"choices": series[0], **chosen}, sample, said, series)
            if not found.missing and any(
                role in found.mapping or role in found.doubtful for role in ("prompt", "instruction")
            ):
                return found
        return self._match(columns, chosen, sample, said, ())

    def _match(
        self,
        columns: Sequence[str],
        chosen: Mapped,
        sample: Sequence[Values],
        said: bool,
        series: Sequence[str],
    ) -> Match:
        """As match; `series`: columns that hold an option each."""
        taken = {column for column in chosen.values() if column} | {*series}
        exact: dict[str, list[str]] = {}
        cores: dict[str, list[str]] = {}
        words: dict[str, list[str]] = {}
        for name in columns:
            if isinstance(name, str) and name not in taken:
                exact.setdefault(simplify(name), []).append(name)
                cores.setdefault(find_core(name), []).append(name)
                for word in list_words(name):
                    words.setdefault(word, []).append(name)
        mapping: dict[str, str] = {}
        doubtful: dict[str, tuple[str, ...]] = {}
        notes: list[Text] = []

        def find(role: str, aliases: Sequence[str], index: Mapping[str, Sequence[str]]) -> list[str]:
            found = [name for alias in aliases if alias for name in index.get(alias, ()) if name not in taken]
            sure = index is exact
            return [name for name in dict.fromkeys(found) if self._suits(role, name, sample, sure=sure)]

        def take(role: str, names: Sequence[str]) -> None:
            if len(names) > 1:
                doubtful[role] = tuple(names)
            else:
                mapping[role] = names[0]
            taken.update(names)

        for role, aliases in self.roles.items():
            if role in chosen:
                if chosen[role]:
                    mapping[role] = chosen[role]
                continue
            if role in MATERIALS or not aliases:
                continue
            found = find(role, aliases, exact)
            if not found or role in self.rivals:
                found = list(dict.fromkeys([*found, *find(role, aliases, cores)]))
            if role in self.rivals:
                found += find_siblings(found, [name for name in columns if name not in taken], sample)
            if not found and (
                role == "reasoning" or any(role in roles.split("|") for roles in self.required)
            ):
                found = [
                    name for name in find(role, aliases, words) if not says_the_same(name, columns, sample)
                ]
            if sample and found and _hold_nothing(found, sample):
                names = (*aliases, *self.fallback.get(role, ()))
                others = [*find(role, names, exact), *find(role, names, cores), *find(role, aliases, words)]
                full = [name for name in dict.fromkeys(others) if not _hold_nothing([name], sample)]
                # An empty column plays no role where another that is not named so may.
                found = full or ([] if hold_words(set(columns) - taken, sample) else found)
            if role in SAID and any(is_constant(name, sample) for name in found):
                # The state of a row, such as "accept", where another column tells rows apart.
                rest = set(columns) - taken - {*found}
                if any(sorts(name, sample) for name in rest):
                    found = [name for name in found if not is_constant(name, sample)]
            if role in SAID and any(is_wordless(name, sample) for name in found):
                found = [name for name in found if not is_wordless(name, sample)]
            if len(found) > 1:
                found = [name for name in found if simplify(name) not in YIELDING] or found
            found = drop_versions(drop_guesses(found, columns, taken) if role in SAID else found)
            if role in self.loose:
                found = found[:1]
            elif len(found) > 1:
                found, told = self._compare(role, found, sample)
                notes += told
            if found:
                take(role, found)
        for extra in (self.fallback, self.said) if said else (self.fallback,):
            for role, aliases in extra.items():
                if role in mapping or role in doubtful or chosen.get(role) == "":
                    continue
                found = find(role, aliases, exact) or find(role, aliases, cores)
                if sample:
                    found = [name for name in found if not _hold_nothing([name], sample)]
                    found = [name for name in found if not _hold_addresses(name, sample)]
                if found := drop_guesses(found, columns, taken) if role in SAID else found:
                    take(role, _order_fallback(role, found, sample)[:1])
        if "weight" in mapping and "weight" not in chosen and not weighs_rows(mapping["weight"], sample):
            del mapping["weight"]
        free = [name for name in columns if name not in taken]
        mapping = self.settle([*free, *mapping.values()], mapping, sample)
        if self.beside == "named":
            rest = [name for name in columns if name not in taken and name not in mapping.values()]
            rest = [
                name
                for name in rest
                if not (holds_all(name, mapping, sample) or is_quoted(name, mapping, sample))
            ]
            heads = [name for name in rest if heads_text(name, mapping, sample)]
            if "prompt" not in chosen and (head := find_stand_in(rest, mapping, sample)):
                heads = [mapping["prompt"], *(name for name in heads if name != head)]
                rest = [heads[0], *(name for name in rest if name != head)]
                mapping = {**mapping, "prompt": head}
            if not {"first", "rated"}.isdisjoint(mapping):
                rest = [name for name in rest if not judges(name)]
            mapping |= find_material(rest, chosen, sample, heads, mapping.get("completion", ""))
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
        ):  # broken rows are counted one by one later; the rest says well enough what the file is
            shape = 0.75 + shape / 4
        exact = all(
            any(
                role in mapping and simplify(mapping[role]) in self.roles[role][:1]
                for role in roles.split("|")
            )
            for roles in self.required
        )
        confidence = 0.5 + 0.4 * shape + 0.1 * exact - self.doubt(columns, mapping, sample)
        return Score(confidence=round(max(0.0, confidence), 3), reason=reason, match=match)

    def convert(self, values: Values, mapping: Mapped) -> Conversation:
        """Return the Conversation of a row, with its material before the first question. Raises RowError."""
        conversation = self.read(values, mapping)
        if "weight" in mapping:
            conversation = weigh_row(conversation, values.get(mapping["weight"]))
        return put_material(conversation, values, mapping) if MATERIALS[0] in mapping else conversation

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

    def _suits(self, role: str, name: str, sample: Sequence[Values], *, sure: bool = False) -> bool:
        """Return whether what a column holds can play a role; `sure`: its name is the role's, and not one like it.

        What a format requires is judged by `prove`, row by row.
        """
        kind = self.kinds.get(role, lambda cell: True)
        cells = [row[name] for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
        if (
            self.worded
            and cells
            and all(isinstance(cell, (list, tuple)) and is_numbers(cell) for cell in cells)
        ):
            return False  # ids of tokens, whose words may stand in another column
        if role in ASKING and count_rows(cells):
            return False  # the number of the row
        if role in ASKING and cells and all(isinstance(cell, str) and is_handle(cell) for cell in cells):
            return False  # who asked
        if role in SAID and is_state(name, cells):
            return False
        if role in ASKING and simplify(name) not in ASKING and 2 * sum(map(is_code, cells)) > len(cells):
            return False  # a `query` of a database is no question
        if sure and any(role in roles.split("|") for roles in self.required):
            return True
        if sure and not cells:  # an empty column of thoughts hides one that is filled
            return role != "reasoning" or not sample
        if not sure and cells and all(isinstance(cell, str) and is_address(cell) for cell in cells):
            return False
        if role == "reasoning" and sorts(name, sample):
            return False  # "deductive", "inductive"
        if role == "system" and cells and all(map(_is_program_name, cells)):
            return False  # which system made it, and not what one was told
        fits = sum(map(kind, cells))
        return 2 * fits >= len(cells) if sure else bool(cells) and fits == len(cells)

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


def _is_program_name(cell: object) -> bool:
    """Return whether a cell is one word with a hyphen or a number in it: `Online-A`, `gpt-4`."""
    return isinstance(cell, str) and PROGRAM_NAME.fullmatch(cell.strip()) is not None


def _order_fallback(role: str, names: Sequence[str], sample: Sequence[Values]) -> list[str]:
    """Return `names` with those last that always hold the same, or are often empty; a title that asks before a text."""
    cells = {name: [str(row.get(name)) for row in sample[:LOOKED_AT]] for name in names}
    asks = [name for name in names if 2 * sum(map(is_asking, cells[name])) > len(cells[name])]
    told = role == "prompt" and bool(asks) and simplify(names[0]) in TEXT
    same = [name for name in names if len(cells[name]) >= CONSTANT_ROWS and len({*cells[name]}) == 1]
    return sorted(names, key=lambda name: (name in same, told and name not in asks, is_sparse(name, sample)))


def _hold_addresses(name: str, sample: Sequence[Values]) -> bool:
    """Return whether all cells of a column are addresses: where a row is from, and nothing to be read."""
    cells = [row[name] for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
    return bool(cells) and all(isinstance(cell, str) and is_address(cell) for cell in cells)


def _hold_nothing(names: Sequence[str], sample: Sequence[Values]) -> bool:
    """Return whether all cells of these columns are empty."""
    return all(is_empty(row.get(name)) for name in names for row in sample[:LOOKED_AT])
