"""Recognise the format of a data set, with a confidence and a reason; where two qualify, ask instead of guessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.core.text import Text, text
from studio.data.formats import FORMATS
from studio.data.formats.format import Format, Mapped, Values

ACCEPT = 0.7
MARGIN = 0.2
"""The best format must be ahead of the second by this much."""


class Ambiguous(StudioError):
    """The data set needs an answer from the person: `question`, and the `choices` that it has."""

    def __init__(self, what: Text, why: Text, fix: Text, choices: tuple[str, ...] = ()) -> None:
        super().__init__(what, why, fix)
        self.choices = choices


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """The format of a data set and which column plays which role."""

    format: Format
    mapping: Mapped
    confidence: float
    """0..1; 1 when the person said so."""
    reason: Text


def sniff(columns: Sequence[str], sample_rows: Sequence[Values], spec: DatasetSpec) -> Guess:
    """Return the Guess for these columns and sample rows; `spec.format` and `spec.mapping` win.

    Raises StudioError when they do not fit the columns, Ambiguous when no format is clear.
    """
    chosen = dict(spec.mapping)
    _check_columns(chosen, columns)
    if spec.format != "auto":
        format = _find_format(spec.format)
        return _settle(format, columns, chosen, 1.0, text("data.format.chosen", format=format.name))
    fitting = [format for format in FORMATS if set(chosen) <= set(format.roles)]
    if not fitting:
        raise _refuse_mapping(
            next(iter(chosen)), sorted({role for format in FORMATS for role in format.roles})
        )
    ranked = sorted(
        ((format, *format.score(columns, sample_rows, chosen)) for format in fitting), key=lambda one: -one[1]
    )
    format, confidence, reason = ranked[0]
    if confidence < ACCEPT:
        raise Ambiguous(
            text("data.sniff.unknown"),
            text("data.sniff.unknown.why", columns=list(columns)),
            text("data.sniff.unknown.fix", formats=[format.name for format in FORMATS]),
            tuple(format.name for format in FORMATS),
        )
    rivals = [other.name for other, score, _ in ranked if confidence - score < MARGIN]
    if len(rivals) > 1:
        raise Ambiguous(
            text("data.sniff.ambiguous", formats=rivals),
            text("data.sniff.ambiguous.why", columns=list(columns)),
            text("data.sniff.ambiguous.fix", formats=rivals),
            tuple(rivals),
        )
    return _settle(format, columns, chosen, confidence, reason)


def _settle(format: Format, columns: Sequence[str], chosen: Mapped, confidence: float, reason: Text) -> Guess:
    unknown = [role for role in chosen if role not in format.roles]
    if unknown:
        raise _refuse_mapping(unknown[0], list(format.roles))
    match = format.match(columns, chosen)
    if match.missing:
        raise StudioError(
            text("data.sniff.missing", format=format.name, role=match.missing[0]),
            text("data.sniff.missing.why", columns=list(columns)),
            text("data.sniff.missing.fix", role=match.missing[0]),
        )
    for role, names in match.doubtful.items():
        raise Ambiguous(
            text("data.sniff.doubtful", role=role, columns=list(names)),
            text("data.sniff.doubtful.why"),
            text("data.sniff.doubtful.fix", role=role, column=names[0]),
            names,
        )
    return Guess(format=format, mapping=match.mapping, confidence=confidence, reason=reason)


def _find_format(name: str) -> Format:
    for format in FORMATS:
        if format.name == name:
            return format
    raise StudioError(
        text("data.sniff.no_format", format=name),
        text("data.sniff.no_format.why"),
        text("data.sniff.no_format.fix", formats=[format.name for format in FORMATS]),
    )


def _check_columns(chosen: Mapping[str, str], columns: Sequence[str]) -> None:
    for role, column in chosen.items():
        if column not in columns:
            raise StudioError(
                text("data.sniff.no_column", column=column),
                text("data.sniff.no_column.why", role=role),
                text("data.sniff.no_column.fix", columns=list(columns)),
            )


def _refuse_mapping(role: str, roles: Sequence[str]) -> StudioError:
    return StudioError(
        text("data.sniff.no_role", role=role),
        text("data.sniff.no_role.why"),
        text("data.sniff.no_role.fix", roles=list(roles)),
    )
