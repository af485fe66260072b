"""What a data set is, over all its rows: the answer of `launch.py data SOURCE`, and of the Dataset screen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.recipe import DatasetSpec
from studio.core.temporary_folder import TemporaryFolder
from studio.data.convert import Converted, Progress
from studio.data.deadline import Deadline
from studio.data.format_detection import UNSURE
from studio.data.lengths import Lengths, count_places
from studio.data.pipeline import (
    Gathered,
    gather,
    is_trainable,
    open_questions,
    refuses_training,
    tell_split,
)
from studio.data.preview import PreviewRow, show_plain, show_rendered
from studio.data.problems import KEPT, Problems
from studio.data.row import RowProblem, name_place
from studio.data.row_codes import RowCode
from studio.data.row_stats import join_traits
from studio.data.statistics import Statistics, measure
from studio.data.transforms import list_evaluation, read_evaluation


def describe(
    spec: DatasetSpec,
    *,
    cache: Path | None = None,
    tokenizer: Any | None = None,
    vocabulary: int | None = None,
    rows: int = 3,
    method: str = "auto",
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Return the object that `launch.py data SOURCE --json` prints, with Texts where a person reads.

    A format that is not clear gives `format` None and a question in `needs_answer`. Without a tokenizer the
    rows are checked but not rendered. Raises StudioError for a source that cannot be read, and with a tokenizer
    that has no chat template where one is needed; PreparationStopped.
    """
    if cache is None:
        with TemporaryFolder("data") as folder:
            return describe(
                spec,
                cache=folder,
                tokenizer=tokenizer,
                vocabulary=vocabulary,
                rows=rows,
                method=method,
                on_progress=on_progress,
                should_stop=should_stop,
            ) | {"quarantine": None}
    found, statistics = survey(
        spec,
        cache,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        method=method,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    return report(found, statistics, rows)


def survey(
    spec: DatasetSpec,
    cache: Path,
    *,
    tokenizer: Any | None = None,
    vocabulary: int | None = None,
    near: bool | None = None,
    method: str = "auto",
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[Gathered, Statistics | None]:
    """Return all that is known of a data set, and its statistics (None while its format is not clear).

    Raises as describe does.
    """
    found = gather(
        spec,
        cache,
        method=method,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    statistics = None
    if found.converted.has_rows:
        statistics = measure_all(found, near=near)
        note_duplicates(found, statistics)
    return found, statistics


def measure_all(found: Gathered, near: bool | None = None) -> Statistics:
    """Return the statistics over all usable rows of the split, chosen or not; `near` as statistics.measure takes it."""
    converted, tokens = found.converted, found.tokens
    places = list_evaluation(converted)
    lengths = None
    if tokens is not None:
        lengths = Lengths(
            tokens.full_lengths,
            tokens.first_trained,
            tokens.trained_end,
            tokens.trained_counts,
            count_places(tokens.trained, tokens.edges),
        )
    return measure(
        converted.iterate,
        traits=converted.traits(),
        read_evaluation=(lambda: read_evaluation(places)) if places else None,
        evaluation=join_traits([table.traits(split) for table, split in places]) if places else None,
        lengths=lengths,
        max_length=found.spec.max_length,
        lines=converted.shards().column("line"),
        near=near,
        cache=converted.folder,
    )


def note_duplicates(found: Gathered, statistics: Statistics) -> None:
    """Add the exact duplicates (DUPLICATE) to the problems, unless they are left out anyway."""
    pairs = statistics.repeats.exact
    if found.spec.duplicates != "keep" or not len(pairs):
        return
    converted, duplicates = found.converted, Problems()
    for row, first in pairs[:KEPT].tolist():
        place = converted.place(first)
        unit, number = name_place(place["line"], place["row"])
        message = text(f"data.row.repeats.{unit}", number=number)
        duplicates.add(RowProblem(code=RowCode.DUPLICATE, message=message, **converted.place(row)))
    duplicates.counts[RowCode.DUPLICATE] = len(pairs)
    found.problems.join(duplicates)


def report(found: Gathered, statistics: Statistics | None, rows: int) -> dict[str, Any]:
    """Return what is known as the object of `launch.py data`, with `rows` examples."""
    converted = found.converted
    source, understanding = converted.source, converted.understanding
    unsure = any(one.id == "speaker" for one in source.questions)
    refused = (
        refuses_training(found.rows_read, found.refused, found.problems) and not found.spec.accept_bad_rows
    )
    return {
        "source": found.spec.source,
        "container": source.container,
        "encoding": source.encoding,
        "format": understanding.format.name if understanding.format else None,
        "confidence": min(understanding.confidence, UNSURE) if unsure else understanding.confidence,
        "reason": understanding.reason,
        "mapping": dict(understanding.mapping),
        "needs_answer": [one.to_dict() for one in open_questions(converted)],
        "rows_read": found.rows_read,
        "rows_used": found.rows_used if converted.has_rows else 0,
        "rows_quarantined": found.refused,
        "rows_filtered": dict(found.filtered),
        "problems": _list_problems(found),
        "stats": statistics.to_dict() if statistics is not None else {},
        "preview": [one.to_dict() for one in list_examples(found, rows)],
        "columns": list(converted.columns),
        "method": found.method if converted.has_rows else "",
        "trainable": is_trainable(understanding) and not refused,
        "refused": refused,
        "splits": {name: _show_split(converted, name) for name in converted.splits},
        "notes": dict(found.notes) | ({_name_weights(found): found.rows_used} if found.is_weighed else {}),
        "source_notes": [*source.notes, *tell_split(found)],
        "quarantine": str(found.quarantine) if found.quarantine is not None else None,
    }


def copy_quarantine(found: Gathered, path: Path) -> Path:
    """Write all rows set aside into the file `path` and return it. Raises StudioError where it cannot be written."""
    try:
        path = Path(os.path.expanduser(path)).absolute()
        shutil.copyfile(found.quarantine or found.converted.quarantine, path)
    except OSError as error:
        raise StudioError(
            text("data.quarantine.unwritten", path=str(path)),
            literal(error.strerror or str(error)),
            text("data.quarantine.unwritten.fix"),
        ) from error
    return path


def _list_problems(found: Gathered) -> list[dict[str, Any]]:
    """Return the problems with their effect; control signs are only noted while no tokenizer says which ones count."""
    entries = found.problems.entries()
    for entry in entries:
        known = RowCode(entry["code"]).effect
        entry["effect"] = (
            "noted" if entry["code"] == RowCode.CONTROL_TOKENS and found.tokens is None else known
        )
    return entries


def _show_split(converted: Converted, name: str) -> dict[str, Any]:
    """Return what is known of one split before any rule."""
    counts = converted.splits[name]
    return {
        "rows_read": counts.rows_read,
        "rows_used": counts.rows_used,
        "rows_quarantined": counts.rows_refused,
        "problems": [] if name == "train" else converted.problems_of[name].entries(),
    }


def list_examples(found: Gathered, rows: int) -> list[PreviewRow]:
    """Return the first `rows` examples that are learned from, with the very tokens that a run would get."""
    if not found.converted.has_rows or not rows:
        return []
    shards = found.converted.shards(found.split)
    if found.cutting is None or found.renderer is None:
        return [
            show_plain(shards[row], *_place(found, row)) for row in dict.fromkeys(found.rows[:rows].tolist())
        ]
    from studio.data.render import Rendered
    from studio.data.tokens import dress

    limit = None if found.method == "pretrain" else found.spec.max_length
    shown = []
    for place in dict.fromkeys(found.cutting.examples.chosen[:rows].tolist()):
        row = int(found.tokens.rows[place])
        conversation = dress(shards[row], found.spec)
        with Deadline() as deadline:
            deadline.begin(_place(found, row)[1])
            words = [found.renderer.lay_out(side).text for side in conversation.sides]
        sides = [
            Rendered(token_ids=ids, trained=trained, weights=weights, text=one, cut=False)
            for one, (ids, trained, weights) in zip(words, found.tokens.sides_of(place), strict=True)
        ]
        shown.append(show_rendered(conversation, sides, found.renderer.tokenizer, limit, *_place(found, row)))
    return shown


def _place(found: Gathered, row: int) -> tuple[int, int]:
    place = found.converted.place(row, found.split)
    return place["line"], place["row"]


def _name_weights(found: Gathered) -> str:
    return "weighed" if found.method == "weighted_sft" else "weights_unused"
