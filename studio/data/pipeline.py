"""The stages of one source behind each other, for `prepare` and `describe` alike: converted, chosen, tokenised, cut."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import LEARNS, SAMPLING, DatasetSpec
from studio.data.conversation import TRAINABLE
from studio.data.convert import Converted, PreparationStopped, Progress, convert
from studio.data.convert_part import CONTROL
from studio.data.open_question import Question
from studio.data.problems import KEPT, Problems
from studio.data.row import RowProblem
from studio.data.row_codes import RowCode
from studio.data.text_splitting import rate_tokens
from studio.data.transforms import Selection, apply
from studio.data.understanding import Understanding

if TYPE_CHECKING:
    # Templates and tokens cost 150 ms, and only who has named a model sees any.
    from studio.data.examples import Cutting
    from studio.data.render import Renderer
    from studio.data.tokens import Tokens

REFUSED_SHARE = 0.05
"""Of real chats 2 % have an empty turn: what is more than twice that is a wrong format, or a broken file."""
UNCLEAR_RULE = "format_unclear"
COMPARING = (*LEARNS["preference"], *LEARNS["kto"])
"""Objectives that learn from formats of their own, and from nothing else."""
ASKING = ("messages", "sharegpt", "alpaca", "prompt_completion")
"""Formats whose rows ask something, too: what stands before the last answer."""
UNTRAINED = tuple(name for name in ("preference", "kto", "rl", "vision") if name not in TRAINABLE)
"""Formats (named as the kind of their rows) that no objective learns from."""


@dataclass(kw_only=True, slots=True)
class Gathered:
    """What is known of one split of a source after its stages."""

    spec: DatasetSpec
    converted: Converted
    method: str
    split: str = "train"
    selection: Selection | None = None
    """Which rows the rules keep; None while the format is not clear."""
    filtered: Counter[str] = field(default_factory=Counter)
    """Rule -> rows, transforms and length alike."""
    refused: int = 0
    """Rows set aside, by their own fault or the template's."""
    problems: Problems = field(default_factory=Problems)
    renderer: Renderer | None = None
    tokens: Tokens | None = None
    cutting: Cutting | None = None
    answer_tokens: int = 0
    """Tokens that a question leaves free for what the model answers, where that is learned from."""
    notes: Counter[str] = field(default_factory=Counter)
    """What a person should know of so many rows, by the names of render.Layout."""

    @property
    def rows(self) -> np.ndarray:
        """int64: rows of the converted split that the rules keep, in the order of learning."""
        return self.selection.rows if self.selection is not None else np.zeros(0, np.int64)

    @property
    def rows_read(self) -> int:
        """All rows of the split."""
        return self.converted.splits[self.split].rows_read

    @property
    def rows_used(self) -> int:
        """Rows that something is learned from; rows_read = rows_used + refused + filtered."""
        return self.cutting.used if self.cutting is not None else len(self.rows)

    @property
    def is_weighed(self) -> bool:
        """Whether the data say of some answers that they count more or less than others."""
        return self.tokens is not None and len(self.tokens.weights) > 0 and self.method != "pretrain"

    @property
    def quarantine(self) -> Path | None:
        """The file with all rows set aside; None where there are none."""
        own = self.converted.quarantine
        if self.tokens is None or not len(self.tokens.refused):
            return own if own.stat().st_size else None
        together = self.tokens.folder / "all.jsonl"
        if not together.exists():
            staged = together.with_suffix(f".{os.getpid()}")
            with staged.open("wb") as target:
                for path in (own, self.tokens.quarantine):
                    with path.open("rb") as source:
                        shutil.copyfileobj(source, target)
            replace_file(staged, together)
        return together

    def check(self) -> None:
        """Assert that every row read is used, set aside, or left out by a named rule."""
        kept = self.rows_used + self.refused + self.filtered.total()
        assert self.rows_read == kept, f"rows lost: {self.rows_read} read, {kept} accounted for"


def gather(
    spec: DatasetSpec,
    cache: Path,
    *,
    method: str = "auto",
    tokenizer: Any | None = None,
    vocabulary: int | None = None,
    split: str = "train",
    seed: int = 42,
    weight: float = 1.0,
    answer_tokens: int = 0,
    evaluation: Sequence[tuple[Converted, str]] = (),
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Gathered:
    """Take one split of `spec.source` through all stages; without a tokenizer, or a clear format, not to the last.

    vocabulary: token ids that the model knows (None: those of the tokenizer); seed, weight, evaluation: as
    transforms.apply takes them; answer_tokens: as Gathered has them.
    Raises StudioError: unreadable, no chat template where one is needed; PreparationStopped.
    """
    converted = convert(spec, cache, on_progress, should_stop)
    kind = choose_method(method, converted.understanding)
    found = Gathered(spec=spec, converted=converted, method=kind, split=split, answer_tokens=answer_tokens)
    found.refused = converted.splits[split].rows_refused
    found.problems.join(converted.problems_of[split])
    if not converted.has_rows:
        unclear = found.rows_read - found.refused
        found.filtered.update({UNCLEAR_RULE: unclear} if unclear else {})
        return found
    found.selection = apply(
        converted,
        spec,
        split,
        seed=seed,
        evaluation=evaluation,
        weight=weight,
        cache=converted.folder,
        on_rows=_make_listener(converted, on_progress, should_stop),
    )
    found.filtered.update(found.selection.filtered)
    if tokenizer is not None and is_trainable(converted.understanding):
        refuse_objective(kind, converted.understanding.format.name)
        from studio.data.render import Renderer

        found.renderer = Renderer(
            tokenizer,
            choose_learned(kind, spec),
            spec.template,
            reasoning=spec.reasoning,
            vocab_size=vocabulary or None,
            cache=cache,
        )
        _tokenise(found, cache, on_progress, should_stop)
        if method == "auto" and found.is_weighed:
            found.method = "weighted_sft"
    else:
        _note_control(found)
    found.check()
    return found


def _note_control(found: Gathered) -> None:
    """Without a tokenizer nobody knows which signs the model has: rows with those of the common families are noted."""
    shards = found.converted.shards(found.split)
    rows = np.flatnonzero(shards.column("control"))
    rows = rows[np.isin(rows, found.rows)]
    noted = Problems()
    for row in rows[:KEPT].tolist():
        sign = CONTROL.search(bytes(next(shards.read_texts([row]))[1]))[0].decode("utf-8")
        message = text("data.row.control_known", word=sign)
        noted.add(
            RowProblem(
                code=RowCode.CONTROL_TOKENS, message=message, **found.converted.place(row, found.split)
            )
        )
    if len(rows):
        noted.counts[RowCode.CONTROL_TOKENS] = len(rows)
        found.problems.join(noted)


def _tokenise(
    found: Gathered, cache: Path, on_progress: Progress | None, should_stop: Callable[[], bool] | None
) -> None:
    from studio.data.tokens import count_notes, tokenise

    spec, split = found.spec, found.split
    total = found.converted.splits[split].rows_used
    # All rows at once where most are wanted: then the next choice of rules finds its tokens here.
    part = None if 2 * len(found.rows) >= total else np.unique(found.rows)
    tokens = tokenise(
        found.converted,
        found.renderer,
        spec,
        cache,
        split=split,
        rows=part,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    found.tokens = tokens
    lost = np.isin(found.rows, tokens.refused)
    found.refused += len(np.unique(found.rows[lost]))
    found.problems.join(tokens.problems_of(found.converted, found.rows[lost], split))
    found.cutting = _make_cutting(found)
    found.filtered.update(found.cutting.dropped)
    found.problems.join(found.cutting.problems)
    if found.method in COMPARING:
        from studio.data.pair_checks import check_answers

        found.problems.join(check_answers(found.converted, tokens, found.cutting.examples.chosen, split))
    found.notes = count_notes(tokens, found.cutting.examples.chosen)


def _make_cutting(found: Gathered) -> Cutting:
    from studio.data.examples import Cutting

    spec, tokens = found.spec, found.tokens
    places = np.searchsorted(tokens.rows, found.rows[~np.isin(found.rows, tokens.refused)])
    prompts = found.method in SAMPLING
    room = spec.max_length - (min(found.answer_tokens, spec.max_length - 1) if prompts else 0)
    limit = None if found.method == "pretrain" else room
    tokenizer = found.renderer.tokenizer

    def rate() -> np.ndarray:
        ids = [[one] for one in range(len(tokenizer))]
        return rate_tokens(tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False))

    return Cutting(found.converted, tokens, places, limit, spec.too_long, found.split, rate, prompts)


def cut_again(found: Gathered, spec: DatasetSpec) -> Gathered:
    """Return `found` under the limits of `spec`, which says the same of everything that decides rows and tokens."""
    if found.cutting is None or found.spec.max_length == spec.max_length:
        return replace(found, spec=spec)
    again = replace(found, spec=spec, filtered=found.filtered - found.cutting.dropped)
    again.cutting = _make_cutting(again)
    again.filtered.update(again.cutting.dropped)
    again.check()
    return again


def _make_listener(
    converted: Converted, on_progress: Progress | None, should_stop: Callable[[], bool] | None
) -> Callable[[int], None]:
    """Return what hears how many rows were compared: a sign of life, and the place where a stop takes effect."""

    def listen(rows: int) -> None:
        if should_stop is not None and should_stop():
            raise PreparationStopped
        if on_progress is not None:
            on_progress(min(rows, converted.rows), converted.rows)

    return listen


def choose_method(method: str, understanding: Understanding) -> str:
    """Return `method`; for `auto` what suits the format."""
    if method != "auto" or understanding.format is None:
        return method
    return LEARNS.get(understanding.format.name, ("sft",))[0]


def choose_learned(method: str, spec: DatasetSpec) -> str:
    """Return which turns are learned: those that the recipe says, or those that the objective is about."""
    if method in COMPARING:
        return "last_answer" if method in LEARNS["kto"] else "answers"
    if method in SAMPLING:
        return "prompt"
    return "everything" if method == "pretrain" else spec.train_on


def refuse_objective(method: str, format: str) -> None:
    """Raise StudioError where the objective learns from another kind of rows than these."""
    wanted = next((name for name, methods in LEARNS.items() if method in methods and name != "text"), "")
    if format == wanted or (not wanted and format not in ("preference", "kto", "rl")):
        return
    if method in SAMPLING and format in ASKING:
        return
    values = {
        "objective": text(f"knob.objective.choice.{method}"),
        "fitting": text(f"knob.objective.choice.{LEARNS.get(format, ('sft',))[0]}"),
        "rows": text(f"data.rows.{format if format in LEARNS else 'chats'}"),
        "wanted": text(f"data.rows.{wanted or 'chats'}"),
    }
    raise StudioError(*(text(f"data.kind.other_objective{part}", **values) for part in ("", ".why", ".fix")))


def is_trainable(understanding: Understanding) -> bool:
    """Return whether a method of the studio learns from this format."""
    return understanding.format is not None and understanding.format.name not in UNTRAINED


def refuses_training(rows_read: int, rows_refused: int, problems: Problems) -> bool:
    """Return whether so large a share of the rows is broken that a person must look first.

    A tie is not broken, nor is a question that its text does not answer; but where nothing says so of the row, and
    most lists of answers are empty, they were lost.
    """
    whole = problems.counts[RowCode.UNDECIDED] + problems.counts[RowCode.UNANSWERED]
    empty = problems.counts[RowCode.NO_ANSWERS]
    whole += empty if 2 * empty <= rows_read else 0
    return rows_refused - whole > REFUSED_SHARE * (rows_read - whole)


def open_questions(converted: Converted) -> tuple[Question, ...]:
    """Return what only the person can say about a source."""
    return (*converted.source.questions, *converted.understanding.questions)


def refuse_unclear(questions: tuple[Question, ...]) -> StudioError:
    """Return the refusal to train before the first of `questions` is answered."""
    first = questions[0]
    fix = text("data.unclear.fix", field=first.field, choices=", ".join(first.choices[:8]))
    return StudioError(text("data.unclear"), first.question, fix)


def refuse_kind(name: str) -> StudioError:
    """Return the refusal to train on the format `name`, which is understood, but which no method learns from."""
    return StudioError(
        text("data.kind.untrained", format=name),
        text("data.kind.untrained.why"),
        text("data.kind.untrained.fix"),
    )


def refuse_rows(rows_read: int, rows_refused: int, problems: Problems) -> StudioError:
    """Return the refusal to train on a source with so many broken rows."""
    first = problems.first_refused
    what = text("data.prepare.refused", **_count_refused(rows_read, rows_refused, problems))
    return StudioError(what, first.sentence if first is not None else what, text("data.prepare.refused.fix"))


def tell_refused(rows_read: int, rows_refused: int, problems: Problems) -> Text:
    """Return how many rows a run goes on without, of what kind."""
    return text("data.prepare.left_out", **_count_refused(rows_read, rows_refused, problems))


def tell_split(found: Gathered) -> tuple[Text, ...]:
    """Return that the chosen template's end mark is no token of the model's, where it is none."""
    if found.renderer is None or not found.renderer.split_end:
        return ()
    from studio.data.templates.fitting import find_fitting

    first = find_fitting(found.renderer.added)[0]
    values = {"name": found.spec.template, "mark": found.renderer.split_end, "first": first}
    return (text("sentence.two", first=text("data.template.split", **values),
                 second=text("data.template.split.fix", **values)),)  # fmt: skip


def _count_refused(rows_read: int, rows_refused: int, problems: Problems) -> dict[str, object]:
    return {"refused": f"{rows_refused:,}", "read": f"{rows_read:,}", "kinds": problems.kinds()}


def validation_of(spec: DatasetSpec, format: str) -> DatasetSpec:
    """Return the recipe's part for the data set to validate on, whose rows are all read, as `format`."""
    return replace(
        spec,
        source=spec.validation,
        format=format,
        mix={},
        overlap="keep",
        duplicates="keep",
        shuffle=False,
        max_rows=0,
        split="",
        sheet="",
        config="",
        encoding="auto",
    )


def source_of(spec: DatasetSpec, name: str) -> DatasetSpec:
    """Return the recipe's part for a further source: what was said of the first one's file does not hold for it."""
    return replace(
        spec,
        source=name,
        format="auto",
        mapping={},
        speaker="",
        encoding="auto",
        sheet="",
        config="",
        split="",
        mix={},
    )
