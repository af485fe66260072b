"""A first look at a data set: its head as rows, as messages and as the tokens that a model would see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.i18n import Text
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.convert import understand_source
from studio.data.deadline import Deadline
from studio.data.forecast import forecast
from studio.data.open_question import Question
from studio.data.pipeline import choose_learned, choose_method, is_trainable, refuse_unclear
from studio.data.problems import Problems
from studio.data.row import Row, RowError, RowProblem
from studio.data.sampling import SAMPLE_ROWS
from studio.data.source import Source, open_source
from studio.data.understanding import Understanding

if TYPE_CHECKING:
    from studio.data.render import Rendered, Renderer

CELL_CHARACTERS = 2000
MORE = ("kind", "tools", "chosen", "rejected", "label", "extras", "images")
"""What an example may hold beside messages and text."""
TOKENS_SHOWN = 4096
SMALL_BYTES = 2**20
"""So much of a file always fits into a sample, however it holds its rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenView:
    """One token as it is shown."""

    id: int
    text: str
    trained: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewRow:
    """One example as the model sees it; `tokens` are empty without a tokenizer, and `text` is then the document's."""

    line: int
    conversation: Conversation
    text: str
    tokens: tuple[TokenView, ...]
    cut: bool
    row: int = 0
    length: int = 0
    """Tokens before the cut; of a pair those of the longer side."""
    rejected_text: str = ""
    rejected_tokens: tuple[TokenView, ...] = ()
    """The other side of a pair, whose better one stands in `text` and `tokens`."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns; empty for plain text, which stands in `text`."""
        return self.conversation.messages

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a report: messages as chat templates take them, text, tokens, and what else there is."""
        found = self.conversation.to_dict()
        more = {name: value for name, value in found.items() if name in MORE}
        tokens, rejected = (
            [{"id": one.id, "text": one.text, "trained": one.trained} for one in side]
            for side in (self.tokens, self.rejected_tokens)
        )
        known = {"messages": found.get("messages", []), "text": self.text, "tokens": tokens}
        if rejected:
            known |= {"rejected_text": self.rejected_text, "rejected_tokens": rejected}
        return known | {"line": self.line, "row": self.row, "cut": self.cut, "length": self.length} | more


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The head of a data set."""

    source: str
    container: str
    encoding: str
    format: str
    """"" when it is not clear: `questions` and `refusal` say what to answer."""
    confidence: float
    reason: Text | None
    mapping: Mapping[str, str]
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    """The cells as text, cut at CELL_CHARACTERS; show them as text only, never as HTML."""
    rendered: tuple[PreviewRow, ...]
    questions: tuple[Question, ...] = ()
    problems: tuple[Text, ...] = ()
    """Rows of the head that cannot be used, with their line."""
    found: Problems
    """The same one by one, and what was noted."""
    whole: bool = False
    """Whether the head is all there is."""
    expected: tuple[int, int] = (0, 0)
    """(rows that can be used, their tokens) of the whole data set, as the head suggests."""
    refusal: StudioError | None = None
    """Why the rows cannot be trained on as they are: a question is open, or no chat template."""


def preview(
    spec: DatasetSpec,
    tokenizer: Any | None,
    *,
    rows: int = 5,
    cache: Path | None = None,
    method: str = "auto",
    vocabulary: int | None = None,
    uncut: bool = False,
) -> Preview:
    """Return a Preview of the first `rows` rows, reading no more than the head of the file.

    `uncut`: examples are not cut at the maximum length. Raises StudioError when the source cannot be read at all, or
    not as the recipe says; other refusals come in `refusal`.
    """
    source = open_source(spec, cache=cache)
    understanding = understand_source(source, spec, cache)
    questions = (*source.questions, *understanding.questions)
    refusal = refuse_unclear(questions) if questions else None
    head = source.sample[:rows]
    shown: list[PreviewRow] = []
    problems = Problems()
    if understanding.readable:
        renderer = None
        method = choose_method(method, understanding)
        if tokenizer is not None and is_trainable(understanding):
            from studio.data.render import Renderer

            renderer = Renderer(
                tokenizer,
                choose_learned(method, spec),
                spec.template,
                reasoning=spec.reasoning,
                vocab_size=vocabulary or None,
                cache=cache,
            )
        limit = None if uncut or method == "pretrain" else spec.max_length
        shown, error = show_rows(head, source, understanding, spec, renderer, limit, problems)
        refusal = refusal or error
        if error is not None and renderer is not None and not renderer.source:
            from studio.data.templates.fitting import ask_template

            questions = (*questions, ask_template(renderer.added))
    else:
        for problem in filter(None, (row.problem for row in head)):
            problems.add(problem)
    whole = len(head) < SAMPLE_ROWS and len(head) == len(source.sample) and is_small(source)
    return Preview(
        source=spec.source,
        container=source.container,
        encoding=source.encoding,
        format=understanding.format.name if understanding.format else "",
        confidence=understanding.confidence,
        reason=understanding.reason,
        mapping=dict(understanding.mapping),
        columns=source.columns,
        rows=tuple({name: _show_cell(cell) for name, cell in row.values.items()} for row in head),
        rendered=tuple(shown),
        questions=questions,
        problems=problems.sentences(),
        found=problems,
        whole=whole,
        expected=forecast(source, len(head), [one.conversation for one in shown], spec, whole=whole),
        refusal=refusal,
    )


def is_small(source: Source) -> bool:
    """Return whether all rows fit into a sample."""
    files = source.splits["train"]
    return not any(file.packing for file in files) and sum(file.size_bytes for file in files) < SMALL_BYTES


def show_rows(
    rows: Sequence[Row],
    source: Source,
    understanding: Understanding,
    spec: DatasetSpec,
    renderer: Renderer | None,
    limit: int | None,
    problems: Problems,
) -> tuple[list[PreviewRow], StudioError | None]:
    """Return `rows` as PreviewRows and what stops all of them; those that cannot be used join `problems`."""
    shown: list[PreviewRow] = []
    refusal: StudioError | None = None
    files = source.splits["train"]
    name = files[0].name if len(files) == 1 else ""
    for row in rows:
        try:
            if row.problem is not None:
                raise RowError(row.problem.code, row.problem.message)
            conversation = understanding.format.read(row.values, understanding.mapping)
            for code, message in understanding.format.notes(conversation):
                problems.add(RowProblem(code=code, message=message, line=row.line, row=row.row, file=name))
            rendered = None
            if renderer is not None and refusal is None:
                from studio.data.tokens import dress

                conversation = dress(conversation, spec)
                with Deadline() as deadline:
                    deadline.begin(row.row)
                    layouts = [renderer.lay_out(side) for side in conversation.sides]
                rendered = renderer.tokenize(layouts, None)
        except RowError as error:
            problem = RowProblem(
                code=error.code, message=error.message, line=row.line, row=row.row, file=name
            )
            problems.add(problem)
            continue
        except StudioError as error:
            refusal, rendered = error, None
        if rendered is None:
            shown.append(show_plain(conversation, row.line, row.row))
        else:
            shown.append(show_rendered(conversation, rendered, renderer.tokenizer, limit, row.line, row.row))
    return shown, refusal


def show_plain(conversation: Conversation, line: int, row: int) -> PreviewRow:
    """Return an example without tokens."""
    return PreviewRow(
        line=line, row=row, conversation=conversation, text=conversation.text, tokens=(), cut=False
    )


def show_rendered(
    conversation: Conversation,
    sides: Sequence[Rendered],
    tokenizer: Any,
    limit: int | None,
    line: int,
    row: int,
) -> PreviewRow:
    """Return an example, of one sequence or of a pair, with the first TOKENS_SHOWN tokens of each up to `limit`."""
    first, *others = sides
    length = max(len(side.token_ids) for side in sides)
    return PreviewRow(
        line=line,
        row=row,
        conversation=conversation,
        text=first.text,
        tokens=_view(first, tokenizer, limit),
        cut=limit is not None and length > limit,
        length=length,
        rejected_text=others[0].text if others else "",
        rejected_tokens=_view(others[0], tokenizer, limit) if others else (),
    )


def _view(rendered: Rendered, tokenizer: Any, limit: int | None) -> tuple[TokenView, ...]:
    shown = min(TOKENS_SHOWN, limit or TOKENS_SHOWN)
    ids = np.asarray(rendered.token_ids[:shown]).tolist()
    words = tokenizer.batch_decode([[one] for one in ids], clean_up_tokenization_spaces=False) if ids else []
    trained = np.asarray(rendered.trained[:shown]).tolist()
    return tuple(
        TokenView(id=one, text=word, trained=learned)
        for one, word, learned in zip(ids, words, trained, strict=True)
    )


def _show_cell(cell: object) -> str:
    words = (
        ""
        if cell is None
        else cell
        if isinstance(cell, str)
        else json.dumps(cell, ensure_ascii=False, default=str)
    )
    return words if len(words) <= CELL_CHARACTERS else words[:CELL_CHARACTERS] + "…"
