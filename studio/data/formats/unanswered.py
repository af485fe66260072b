"""Rows whose text holds no answer to their question, as SQuAD 2 has them: nothing is broken, and nothing to learn."""

from __future__ import annotations

from collections.abc import Mapping

from studio.core.i18n import text
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import part_name
from studio.data.formats.context import MATERIALS
from studio.data.formats.format import Mapped
from studio.data.row import RowError
from studio.data.row_codes import RowCode

UNANSWERABLE = frozenset("impossible unanswerable".split())
"""Words in the names of flags that are true where nothing answers a question ..."""
ANSWERABLE = frozenset("answerable possible".split())
"""... and in those of flags that are false there."""
YES, NO = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "no")


def check_answered(values: Values, mapping: Mapped) -> None:
    """Raise RowError where a row without an answer is meant so: a flag says it, or a list of answers is empty.

    An empty text where others have words is a gap, and none of these.
    """
    column = mapping.get("completion", "")
    cell = values.get(column)
    if not (is_empty(cell) or (isinstance(cell, Mapping) and all(map(is_empty, cell.values())))):
        return
    for name, flag in values.items():
        words, said = {*part_name(name)}, str(flag).strip().lower()
        if (words & UNANSWERABLE and said in YES) or (words & ANSWERABLE and said in NO):
            raise RowError(RowCode.UNANSWERED, text("data.row.unanswered", column=shorten(column)))
    listed = isinstance(cell, (list, tuple, Mapping))
    if listed and not is_empty(values.get(mapping.get(MATERIALS[0], ""))):
        raise RowError(RowCode.NO_ANSWERS, text("data.row.no_answers", column=shorten(column)))
