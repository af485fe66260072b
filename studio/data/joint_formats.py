"""Files whose rows are written for several trainers at once: pairs, votes and plain answers beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.formats import alpaca, kto, preference, prompt_completion
from studio.data.formats.column_names import simplify
from studio.data.formats.format import Format, Mapped

JUDGING = (preference.FORMAT, kto.FORMAT)
"""Formats that learn from what somebody held of answers, and ..."""
BESIDE = (kto.FORMAT, alpaca.FORMAT, prompt_completion.FORMAT)
"""... those that may stand beside them, whole."""
OWN_COLUMNS = 2
"""So many columns that are not in use make another format of what could be a further column."""


def list_joint(format: Format, mapping: Mapped, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the formats that `columns` hold whole beside the one in use, by each format's own first names."""
    names = {simplify(name): name for name in columns}
    found = []
    for other in BESIDE if format in JUDGING else ():
        groups = [
            [name for role in roles.split("|") for name in other.roles.get(role, ())[:1]]
            for roles in other.required
        ]
        own = [next((names[name] for name in group if name in names), "") for group in groups]
        if all(own) and len({*own} - {*mapping.values()}) >= OWN_COLUMNS:
            found.append(other.name)
    return tuple(found)
