"""Which chat templates take the rows that the model's own refuses."""

from __future__ import annotations

import itertools

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.open_question import Question
from studio.data.pipeline import Gathered
from studio.data.render import Renderer
from studio.data.row import RowError
from studio.data.row_codes import RowCode
from studio.data.templates.fitting import MARKS, find_fitting
from studio.data.tokens import dress

MOST_SHARE = 0.05
TRIED_ROWS = 8


def ask_other_template(found: Gathered) -> Question | None:
    """Return the question which other template is to be used, where the one in use refuses many rows.

    None where it refuses few, or where no other takes those that were tried.
    """
    refused = [] if found.tokens is None else found.tokens.refused
    if found.problems.counts[RowCode.TEMPLATE] <= MOST_SHARE * found.rows_read or not len(refused):
        return None
    shards = found.converted.shards(found.split)
    rows = [dress(row, found.spec) for _, row in shards.read(itertools.islice(refused, TRIED_ROWS))]
    fitting = find_fitting(found.renderer.added)
    others = (name for name in MARKS if name not in fitting)
    # One that the model has no tokens for writes them as words, which is learned, but takes longer.
    takes = tuple(name for name in (*fitting, *others) if _takes(name, found, rows))
    if not takes:
        return None
    count = f"{len(refused):,}"
    return Question(
        id="template",
        question=text("data.template.other", rows=count),
        choices=takes[:6],
        field="data.template",
    )


def _takes(name: str, found: Gathered, rows: list) -> bool:
    try:
        renderer = Renderer(
            found.renderer.tokenizer, found.renderer.train_on, name, reasoning=found.spec.reasoning
        )
        renderer.tokenize([renderer.lay_out(row) for row in rows], None)
    except (StudioError, RowError):
        return False
    return True
