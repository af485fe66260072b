"""From data sets on disk to the examples of a run: gathered, mixed, parted into training and validation, packed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.facts import DataFacts
from studio.core.i18n import Text, text
from studio.core.recipe import LEARNS, SAMPLING, DatasetSpec, share_held_out
from studio.core.temporary_folder import TemporaryFolder
from studio.data.asked_format import settle_asked
from studio.data.convert import PreparationStopped, Progress, understand_source
from studio.data.examples import CUT_RULE, EMPTY_RULE, JoinedExamples, join_examples
from studio.data.pipeline import (
    Gathered,
    choose_method,
    gather,
    is_trainable,
    open_questions,
    refuse_kind,
    refuse_rows,
    refuse_unclear,
    refuses_training,
    source_of,
    tell_refused,
    tell_split,
    validation_of,
)
from studio.data.prompt_rows import PromptRows
from studio.data.sequence_packing import Example, count_labels, join_blocks, pack
from studio.data.source import open_source
from studio.data.split import choose_validation
from studio.data.transforms import list_evaluation

__all__ = ["PreparationStopped", "PreparedData", "prepare", "refuses_training"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What a run learns from."""

    train: Sequence[Example]
    """Each is read from disk when it is asked for."""
    validation: Sequence[Example]
    facts: DataFacts
    method: str
    """The objective: the recipe's, or what `auto` chose by the data."""
    warnings: tuple[Text, ...] = ()
    """What a person should know before it is learned: rows left out, a template that does not fit."""
    asked: PromptRows | None = None
    """The rows of `train`, and below of `validation`, where the model is asked and rewards judge."""
    asked_held_out: PromptRows | None = None
    keeps: Any = None
    """The folder of the tokens, where it is to go with them."""


def prepare(
    spec: DatasetSpec,
    method: str,
    tokenizer: Any,
    *,
    seed: int,
    cache: Path | None = None,
    answer_tokens: int = 0,
    vocabulary: int | None = None,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PreparedData:
    """Return the examples of a run and the facts about its data set.

    `method`: the recipe's objective; `seed` decides which examples of equal length are packed together. `cache`:
    where converted rows and tokens are kept for the next time; None: nowhere. `answer_tokens`: what questions leave
    free, where the model's own answers are learned from. `vocabulary`: token ids that the model
    knows; None: those of the tokenizer.
    Raises StudioError: unreadable, a question open, a kind that no method learns from, no chat template where one is
    needed, too many rows refused, nothing left to learn; PreparationStopped when `should_stop` says so.
    """
    last = (0, 1)

    def told(done: int, total: int) -> None:
        nonlocal last
        last = done, total
        if on_progress is not None:
            on_progress(done, total)

    def told_again(done: int, total: int) -> None:
        told(*last)  # rows to validate on are no progress, yet a sign of life

    keeps = None
    if cache is None:
        keeps = TemporaryFolder("data")
        cache = keeps.path

    def take(part: DatasetSpec, method: str, silent: bool = False, **settings: Any) -> Gathered:
        found = gather(
            settle_asked(part, method, cache),
            cache,
            method=method,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            seed=seed,
            answer_tokens=answer_tokens,
            on_progress=told_again if silent else told,
            should_stop=should_stop,
            **settings,
        )
        check_usable(found)
        return found

    spec = settle_asked(spec, method, cache)
    weights = {name: read_weight(name, weight) for name, weight in spec.mix.items()}
    held_out = _take_validation(spec, method, take, cache) if spec.validation else None
    evaluation = [(held_out.converted, "train")] if held_out is not None else []
    sources = [take(spec, method, evaluation=evaluation)]
    asked, method = method, sources[0].method
    evaluation += list_evaluation(sources[0].converted)
    for name, weight in weights.items():
        sources.append(take(source_of(spec, name), method, weight=weight, evaluation=evaluation))
    if asked == "auto" and any(found.is_weighed for found in sources):
        method = "weighted_sft"
    train, prompts = mix_sources(sources)
    shards = held_out_shards = [found.converted.shards(found.split) for found in sources]
    notes = list(_note(sources, method))

    if held_out is not None:
        validation = join_examples([held_out.cutting.examples])
        held_out_shards = [held_out.converted.shards(held_out.split)]
        notes += [text("data.problem.validation", problem=one) for one in held_out.problems.sentences()]
    elif "validation" in sources[0].converted.splits:
        with _say_validation():
            found = take(spec, method, silent=True, split="validation")
        validation = join_examples([found.cutting.examples])
        held_out_shards = [found.converted.shards(found.split)]
    else:
        share = share_held_out(spec, len(prompts))
        apart = choose_validation(prompts, share)
        validation, train = train.pick(np.flatnonzero(apart)), train.pick(np.flatnonzero(~apart))
        if share and not apart.any():
            notes.append(text("data.note.too_small"))
    if not len(train):
        raise refuse_nothing(sources[0])

    if method in LEARNS["kto"] and not all(count_labels(train)):
        raise StudioError(*(text(f"data.prepare.one_label{part}") for part in ("", ".why", ".fix")))

    facts = collect_facts(sources, notes)
    # Of the rows that are counted, some may be set apart; those of a split or file of its own are not counted.
    counted = (
        [train] if spec.validation or "validation" in sources[0].converted.splits else [train, validation]
    )
    tokens = sum(int(part.lengths.sum()) for part in counted)
    asked = asked_held_out = None
    if method in SAMPLING:
        asked = PromptRows(train, shards, spec.system_prompt)
        asked_held_out = PromptRows(validation, held_out_shards, spec.system_prompt)
        trained = 0
    elif method == "pretrain":
        blocks = [join_blocks(part, spec.max_length) for part in (train, validation)]
        trained = sum(part.tokens - len(part) for part in blocks[: len(counted)])
        train, validation = blocks
    else:
        trained = sum(part.count_trained() for part in counted)
        if spec.fill and method not in LEARNS["kto"]:  # a label is of one answer
            sides = int(train.documents.max(initial=1))
            shuffled = train.pick(np.random.default_rng(seed).permutation(len(train)))
            train = pack(shuffled, sides * spec.max_length)
    if not len(train):
        raise refuse_nothing(sources[0])
    facts = dataclasses.replace(facts, tokens=tokens, trained_tokens=trained)
    left_out = (
        tell_refused(found.rows_read, found.refused, found.problems) for found in sources if found.refused
    )
    warnings = (*tell_split(sources[0]), *left_out, *_tell_cut(sources))
    return PreparedData(
        train=train, validation=validation, facts=facts, method=method, warnings=warnings, asked=asked,
        asked_held_out=asked_held_out, keeps=keeps,
    )  # fmt: skip


def check_usable(found: Gathered) -> None:
    """Raise StudioError when a question is open, nothing learns from this kind, or too many rows are refused."""
    converted, spec = found.converted, found.spec
    if found.refused and found.refused == found.rows_read:
        raise refuse_rows(found.rows_read, found.refused, found.problems)
    questions = open_questions(converted)
    if questions:
        raise refuse_unclear(questions)
    if not is_trainable(converted.understanding):
        raise refuse_kind(converted.understanding.format.name)
    if refuses_training(found.rows_read, found.refused, found.problems) and not spec.accept_bad_rows:
        raise refuse_rows(found.rows_read, found.refused, found.problems)
    if not found.rows_used:
        raise refuse_nothing(found)


def read_weight(name: str, weight: str) -> float:
    """Return the number that a recipe's `data.mix` gives a source. Raises StudioError."""
    try:
        value = float(weight)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1000:
        raise StudioError(
            text("data.mix.weight", source=name, weight=str(weight)[:20]),
            text("data.mix.weight.why"),
            text("data.mix.weight.fix"),
        )
    return value


def mix_sources(sources: Sequence[Gathered]) -> tuple[JoinedExamples, np.ndarray]:
    """Return the examples of all sources, as often as their weights say, and the hash of what each asks (uint64)."""
    parts, places, numbers, prompts = [], [], [], []
    for number, found in enumerate(sources):
        examples = found.cutting.examples
        rows = found.tokens.rows[examples.chosen]
        shards = found.converted.shards(found.split)
        copies = np.zeros(len(shards), dtype=np.int64)
        copies[found.selection.rows] = found.selection.copies
        place = np.repeat(np.arange(len(examples), dtype=np.int64), copies[rows])
        parts.append(examples)
        places.append(place)
        numbers.append(np.full(len(place), number))
        prompts.append(shards.column("prompt")[rows][place])
    return JoinedExamples(parts, np.concatenate(numbers), np.concatenate(places)), np.concatenate(prompts)


def collect_facts(sources: Sequence[Gathered], notes: Iterable[Text] = ()) -> DataFacts:
    """Return the DataFacts of all sources together; what a data set is, is said of the first."""
    first = sources[0].converted
    hashes = [found.converted.content_hash for found in sources]
    digest = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return DataFacts(
        source=sources[0].spec.source,
        format=first.understanding.format.name,
        reason=first.understanding.reason,
        mapping=dict(first.understanding.mapping),
        columns=first.columns,
        rows_read=sum(found.rows_read for found in sources),
        rows_used=sum(found.rows_used for found in sources),
        rows_refused=sum(found.refused for found in sources),
        content_hash=digest,
        problems=(*(one for found in sources for one in found.problems.sentences()), *notes),
        rows_cut=sum(found.cutting.cut for found in sources),
        rows_dropped=dict(sum((found.filtered for found in sources), Counter())),
        quarantine=str(sources[0].quarantine or ""),
    )


def refuse_nothing(found: Gathered) -> StudioError:
    """Return the refusal to train where no row is left."""
    max_length = found.spec.max_length
    chosen = sum(rows for rule, rows in found.filtered.items() if rule not in (CUT_RULE, EMPTY_RULE))
    most = max((found.filtered[CUT_RULE], "cut"), (chosen, "rules"))
    reason = most[1] if most[0] else "empty"
    return StudioError(
        text("data.prepare.nothing", read=found.rows_read),
        text(f"data.prepare.nothing.{reason}", max_length=max_length, left=chosen),
        text(f"data.prepare.nothing.{reason}.fix", max_length=max_length),
    )


def _take_validation(spec: DatasetSpec, method: str, take: Callable[..., Gathered], cache: Path) -> Gathered:
    """Return the validation data set, read in the same format, all of its rows."""
    first = understand_source(open_source(spec, cache=cache), spec, cache)
    same = validation_of(spec, first.format.name if first.format is not None else "auto")
    with _say_validation():
        return take(same, choose_method(method, first), silent=True)


@contextmanager
def _say_validation() -> Iterator[None]:
    """Let a refusal say that it is about the rows to validate on."""
    try:
        yield
    except StudioError as error:
        where = text("data.problem.validation", problem=error.what)
        raise StudioError(where, error.why, error.fix, error.exit_code) from error


def _tell_cut(sources: Sequence[Gathered]) -> Iterable[Text]:
    """Yield how many rows the maximum length leaves out or shortens, though nobody asked for that."""
    beyond = sum(found.filtered[CUT_RULE] for found in sources)
    if beyond:
        yield text(f"data.rule.{CUT_RULE}", rows=beyond)
    cut = sum(found.cutting.cut for found in sources)
    if cut:
        yield text("data.note.cut", rows=cut)


def _note(sources: Sequence[Gathered], method: str) -> Iterable[Text]:
    filtered = sum((found.filtered for found in sources), Counter())
    for rule, rows in filtered.items():
        yield text(f"data.rule.{rule}", rows=rows)
    cut = sum(found.cutting.cut for found in sources)
    if cut:
        yield text("data.note.cut", rows=cut)
    weighed = sum(found.rows_used for found in sources if found.is_weighed)
    if weighed and method != "weighted_sft":
        yield text("data.note.weights_unused", rows=weighed)
    for note, rows in sum((found.notes for found in sources), Counter()).items():
        yield text(f"data.note.{note}", rows=rows)
