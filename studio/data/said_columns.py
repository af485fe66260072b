"""What a person says of a data set, a format and the columns of its roles, checked against what there is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.formats import FORMATS
from studio.data.formats.cells import shorten, show_names
from studio.data.formats.format import Format


def find_format(name: str) -> Format:
    """Return the format that a person named. Raises StudioError where there is none of that name."""
    for format in FORMATS:
        if format.name == name:
            return format
    raise StudioError(
        text("data.sniff.no_format", format=shorten(name)),
        text("data.sniff.no_format.why"),
        text("data.sniff.no_format.fix", formats=[format.name for format in FORMATS]),
    )


def check_columns(chosen: Mapping[str, str], columns: Sequence[str]) -> None:
    """Raise StudioError for a role with a column that is not there, or with one that has another role already."""
    for role, column in chosen.items():
        if column and column not in columns:
            raise StudioError(
                text("data.sniff.no_column", column=shorten(column)),
                text("data.sniff.no_column.why", role=role),
                text("data.sniff.no_column.fix", columns=show_names(columns)),
            )
    for column, count in Counter(filter(None, chosen.values())).items():
        if count > 1:
            roles = [role for role, name in chosen.items() if name == column]
            raise StudioError(
                text("data.sniff.twice", column=shorten(column), roles=roles),
                text("data.sniff.twice.why"),
                text("data.sniff.twice.fix"),
            )


def refuse_role(role: str, roles: Sequence[str]) -> StudioError:
    """Return the StudioError for a role that none of the formats has; `roles`: those that there are."""
    # A part's second and further columns (material_2) follow from its first.
    first = [
        name
        for name in roles
        if ((stem := re.sub(r"_(from_)?\d$", "", name)) == name or stem not in roles)
        and not name.endswith("_score")  # so do the scores of two answers
    ]
    return StudioError(
        text("data.sniff.no_role", role=shorten(role)),
        text("data.sniff.no_role.why"),
        text("data.sniff.no_role.fix", roles=first),
    )
