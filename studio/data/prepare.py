"""From a data set on disk to the examples of a run: read, recognise, render, tokenise, set apart, pack."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.facts import DataFacts
from studio.core.recipe import DatasetSpec
from studio.core.text import Text, text
from studio.data.conversation import Conversation
from studio.data.pack import Example, join_blocks, pack
from studio.data.render import Layout, Rendered, Renderer
from studio.data.row import Row, RowError, RowProblem, say_problems
from studio.data.sniff import Guess, sniff
from studio.data.source import RowSource, read_rows
from studio.data.split import choose_validation

BATCH_ROWS = 256
REFUSED_ROWS = 100
REFUSED_SHARE = 0.01
CUT_RULE = "answer_beyond_max_length"
EMPTY_RULE = "nothing_to_learn"
Progress = Callable[[int, int], None]
"""(rows done, rows in all)"""


class PreparationStopped(Exception):
    """The person stopped the run while its data was being prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What a run learns from."""

    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    facts: DataFacts
    method: str
    """`sft` or `pretrain`."""


@dataclass(kw_only=True, slots=True)
class Reading:
    """The usable rows of a source, and those that are not."""

    source: RowSource
    guess: Guess
    rows_read: int = 0
    lines: list[int] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Tokenised:
    """The rows of a Reading as tokens, and what became of the others."""

    rows: list[Rendered] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    notes: Counter[str] = field(default_factory=Counter)


def prepare(
    spec: DatasetSpec,
    method: str,
    tokenizer: Any,
    *,
    seed: int,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PreparedData:
    """Return the examples of a run and the facts about its data set.

    `method`: `auto`, `sft` or `pretrain`; `seed` decides which examples of equal length are packed together.
    Raises StudioError: unreadable, format unclear, no chat template where one is needed, too many rows refused,
    nothing left to learn; PreparationStopped when `should_stop` says so.
    """
    reading = read(spec, should_stop)
    if method == "auto":
        method = "pretrain" if reading.guess.format.name == "text" else "sft"
    train_on = "everything" if method == "pretrain" else spec.train_on
    renderer = Renderer(tokenizer, train_on)
    limit = None if method == "pretrain" else spec.max_length
    tokenised = tokenise(reading, renderer, limit, on_progress, should_stop)
    check_usable(reading, tokenised, spec.max_length)

    apart = choose_validation(tokenised.conversations, 0.0 if spec.validation else spec.validation_share)
    examples = [make_example(row) for row in tokenised.rows]
    train = [example for i, example in enumerate(examples) if i not in apart]
    validation = [examples[i] for i in sorted(apart)]
    notes = list(_note(tokenised, bool(spec.validation_share and not spec.validation and not apart)))
    if spec.validation:
        validation, problems = _prepare_validation(spec, reading.guess, renderer, limit, should_stop)
        notes += problems

    if method == "pretrain":
        train, validation = join_blocks(train, spec.max_length), join_blocks(validation, spec.max_length)
    elif spec.packing:
        order = np.random.default_rng(seed).permutation(len(train))
        train = pack([train[i] for i in order], spec.max_length)
    if not train:
        raise _refuse_nothing(reading, tokenised, spec.max_length)
    facts = collect_facts(reading, tokenised, notes)
    facts = dataclasses.replace(
        facts, trained_tokens=sum(_count_trained(part) for part in (train, validation))
    )
    return PreparedData(train=tuple(train), validation=tuple(validation), facts=facts, method=method)


def read(spec: DatasetSpec, should_stop: Callable[[], bool] | None = None) -> Reading:
    """Return the rows of `spec.source` as Conversations, the broken ones as RowProblems. Raises StudioError."""
    source = read_rows(spec.source)
    rows = [row.values for row in source.sample if row.problem is None]
    if not rows:
        raise _refuse_rows(len(source.sample), [row.problem for row in source.sample])
    reading = Reading(source=source, guess=sniff(source.columns, rows, spec))
    for row in source:
        if reading.rows_read % BATCH_ROWS == 0:
            _stop_when_asked(should_stop)
        reading.rows_read += 1
        try:
            conversation = read_conversation(row, reading.guess)
        except RowError as error:
            reading.problems.append(RowProblem(line=row.line, code=error.code, message=error.message))
        else:
            reading.lines.append(row.line)
            reading.conversations.append(conversation.with_system(spec.system_prompt))
    return reading


def read_conversation(row: Row, guess: Guess) -> Conversation:
    """Return the Conversation of one row. Raises RowError."""
    if row.problem is not None:
        raise RowError(row.problem.code, row.problem.message)
    return guess.format.read(row.values, guess.mapping)


def tokenise(
    reading: Reading,
    renderer: Renderer,
    max_length: int | None,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Tokenised:
    """Return the rows as tokens; rows that the template refuses join `reading.problems`.

    `max_length` None cuts nothing. Raises StudioError without a chat template, PreparationStopped.
    """
    result = Tokenised()
    total = len(reading.conversations)
    for start in range(0, total, BATCH_ROWS):
        _stop_when_asked(should_stop)
        stop = min(start + BATCH_ROWS, total)
        layouts: list[Layout] = []
        kept: list[Conversation] = []
        for line, conversation in zip(
            reading.lines[start:stop], reading.conversations[start:stop], strict=True
        ):
            try:
                layouts.append(renderer.lay_out(conversation))
                kept.append(conversation)
            except RowError as error:
                reading.problems.append(RowProblem(line=line, code=error.code, message=error.message))
        for conversation, row in zip(kept, renderer.tokenize(layouts, max_length), strict=True):
            if not row.trained.any():
                result.dropped[CUT_RULE if row.cut else EMPTY_RULE] += 1
                continue
            result.rows.append(row)
            result.conversations.append(conversation)
            result.cut += row.cut
            result.notes.update(row.notes)
        if on_progress is not None:
            on_progress(stop, total)
    reading.problems.sort(key=lambda problem: problem.line)
    return result


def refuses_training(rows_read: int, rows_refused: int) -> bool:
    """Return whether so many rows are broken that a person must look first: over 1 %, or over 100."""
    return rows_refused > REFUSED_ROWS or rows_refused > REFUSED_SHARE * rows_read


def check_usable(reading: Reading, tokenised: Tokenised, max_length: int) -> None:
    """Raise StudioError when too many rows are refused or nothing is left to learn."""
    if refuses_training(reading.rows_read, len(reading.problems)):
        raise _refuse_rows(reading.rows_read, reading.problems)
    if not tokenised.rows:
        raise _refuse_nothing(reading, tokenised, max_length)


def collect_facts(reading: Reading, tokenised: Tokenised, notes: Iterable[Text] = ()) -> DataFacts:
    """Return the DataFacts. Every row read is used, refused, or left out by a named rule."""
    used, refused = len(tokenised.rows), len(reading.problems)
    assert reading.rows_read == used + refused + tokenised.dropped.total(), (
        "rows lost while preparing the data"
    )
    return DataFacts(
        source=reading.source.source,
        format=reading.guess.format.name,
        reason=reading.guess.reason,
        mapping=dict(reading.guess.mapping),
        columns=reading.source.columns,
        rows_read=reading.rows_read,
        rows_used=used,
        rows_refused=refused,
        content_hash=reading.source.content_hash,
        problems=(*say_problems(reading.problems), *notes),
        tokens=sum(len(row.token_ids) for row in tokenised.rows),
        trained_tokens=sum(int(row.trained.sum()) for row in tokenised.rows),
        rows_cut=tokenised.cut,
        rows_dropped=dict(tokenised.dropped),
    )


def make_example(row: Rendered) -> Example:
    """Return a rendered row as an Example of one document."""
    return Example(row.token_ids, row.trained, (len(row.token_ids),))


def _prepare_validation(
    spec: DatasetSpec,
    guess: Guess,
    renderer: Renderer,
    max_length: int | None,
    should_stop: Callable[[], bool] | None,
) -> tuple[list[Example], list[Text]]:
    """Return the examples of the validation file, read in the same format, and its problems."""
    same = dataclasses.replace(spec, source=spec.validation, format=guess.format.name)
    try:
        reading = read(same, should_stop)
        tokenised = tokenise(reading, renderer, max_length, should_stop=should_stop)
        check_usable(reading, tokenised, spec.max_length)
    except StudioError as error:
        where = text("data.problem.validation", problem=error.what)
        raise StudioError(where, error.why, error.fix, error.exit_code) from error
    problems = [text("data.problem.validation", problem=one) for one in say_problems(reading.problems)]
    return [make_example(row) for row in tokenised.rows], problems


def _note(tokenised: Tokenised, too_small: bool) -> Iterable[Text]:
    for rule, rows in tokenised.dropped.items():
        yield text(f"data.rule.{rule}", rows=rows)
    if tokenised.cut:
        yield text("data.note.cut", rows=tokenised.cut)
    for note, rows in tokenised.notes.items():
        yield text(f"data.note.{note}", rows=rows)
    if too_small:
        yield text("data.note.too_small")


def _count_trained(examples: Sequence[Example]) -> int:
    return sum(int(example.trained.sum()) for example in examples)


def _stop_when_asked(should_stop: Callable[[], bool] | None) -> None:
    if should_stop is not None and should_stop():
        raise PreparationStopped


def _refuse_rows(rows_read: int, problems: Sequence[RowProblem]) -> StudioError:
    return StudioError(
        text("data.prepare.refused", refused=len(problems), read=rows_read),
        problems[0].sentence,
        text("data.prepare.refused.fix"),
    )


def _refuse_nothing(reading: Reading, tokenised: Tokenised, max_length: int) -> StudioError:
    reason = "cut" if tokenised.dropped[CUT_RULE] else "empty"
    return StudioError(
        text("data.prepare.nothing", read=reading.rows_read),
        text(f"data.prepare.nothing.{reason}", max_length=max_length),
        text(f"data.prepare.nothing.{reason}.fix", max_length=max_length),
    )
