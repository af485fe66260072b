"""What a format is: the roles that its columns play, how it is recognised, and how a row becomes a Conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from studio.core.text import Text, text
from studio.data.conversation import Conversation
from studio.data.row import RowError

Values = Mapping[str, object]
"""The cells of one row by column name."""
Mapped = Mapping[str, str]
"""Role -> column name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Which column plays which role; `missing` and `doubtful` name what stands in the way."""

    mapping: Mapped
    missing: tuple[str, ...]
    """Required roles without a column."""
    doubtful: Mapping[str, tuple[str, ...]]
    """Required roles that more than one column could play."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One way to write examples."""

    name: str
    roles: Mapping[str, tuple[str, ...]]
    """Role -> the column names that it goes by, in lower case."""
    required: tuple[str, ...]
    prove: Callable[[Sequence[str], Mapped, Sequence[Values]], float]
    """(columns, mapping, sample) -> 0..1: how far the values look like this format; below 0 when they contradict it."""
    read: Callable[[Values, Mapped], Conversation]
    """Turn one row into a Conversation. Raises RowError."""

    def match(self, columns: Sequence[str], chosen: Mapped | None = None) -> Match:
        """Return which of `columns` play this format's roles; what a person has `chosen` wins."""
        chosen = chosen or {}
        mapping, missing, doubtful = dict(chosen), [], {}
        for role, names in self.roles.items():
            if role in chosen:
                continue
            found = [name for name in columns if simplify(name) in names and name not in chosen.values()]
            if not found:
                missing += [role] if role in self.required else []
                continue
            if len(found) > 1 and role in self.required:
                doubtful[role] = tuple(found)
            mapping[role] = min(found, key=lambda name: names.index(simplify(name)))
        return Match(mapping=mapping, missing=tuple(missing), doubtful=doubtful)

    def score(
        self, columns: Sequence[str], sample: Sequence[Values], chosen: Mapped | None = None
    ) -> tuple[float, Text]:
        """Return a confidence 0..1 and its reason.

        0.5 for all required columns, up to 0.4 for what the values look like, 0.1 for exact column names.
        """
        match = self.match(columns, chosen)
        if match.missing:
            return 0.0, text("data.format.missing", format=self.name, roles=match.missing)
        shape = self.prove(columns, match.mapping, sample)
        exact = all(simplify(match.mapping[role]) == self.roles[role][0] for role in self.required)
        names = [match.mapping[role] for role in self.roles if role in match.mapping]
        confidence = max(0.0, 0.5 + 0.4 * shape + 0.1 * exact)
        return round(min(confidence, 1.0), 3), text(f"data.format.{self.name}.reason", columns=names)


def simplify(name: str) -> str:
    """Return a column name in lower case with underscores."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def share(sample: Sequence[Values], holds: Callable[[Values], bool]) -> float:
    """Return the share of the sample's rows for which `holds`."""
    return sum(map(holds, sample)) / len(sample) if sample else 0.0


def is_written(value: object) -> bool:
    """Return whether a cell holds words."""
    return isinstance(value, str) and bool(value.strip())


def read_cell(values: Values, column: str) -> str:
    """Return the text of a required cell. Raises RowError: no such field, null, not text, or empty."""
    if column not in values:
        raise RowError("E120", text("data.row.missing", column=column))
    value = values[column]
    if value is None:
        raise RowError("E121", text("data.row.null", column=column))
    if not isinstance(value, str):
        raise RowError("E120", text("data.row.not_text", column=column))
    if not value.strip():
        raise RowError("E122", text("data.row.blank", column=column))
    return value


def read_optional(values: Values, mapping: Mapped, role: str) -> str:
    """Return the text of a cell that may be absent, null or empty ("" then). Raises RowError when it is not text."""
    value = values.get(mapping[role]) if role in mapping else None
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        raise RowError("E120", text("data.row.not_text", column=mapping[role]))
    return value if value.strip() else ""
