"""A first look at a data set: its head as rows, as messages and as the tokens that a model would see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.core.text import Text
from studio.data.conversation import Conversation, Message
from studio.data.prepare import read_conversation
from studio.data.render import Rendered, Renderer
from studio.data.row import Row, RowError, RowProblem
from studio.data.sniff import Guess, sniff
from studio.data.source import read_rows

CELL_CHARACTERS = 2000
TOKENS_SHOWN = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenView:
    """One token as it is shown."""

    id: int
    text: str
    trained: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewRow:
    """One example as the model sees it; `text` and `tokens` are empty without a tokenizer."""

    line: int
    messages: tuple[Message, ...]
    """The turns; empty for plain text, which stands in `text`."""
    text: str
    tokens: tuple[TokenView, ...]
    cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The head of a data set."""

    source: str
    format: str
    """"" when it is not clear: `refusal` says what to answer."""
    confidence: float
    reason: Text | None
    mapping: Mapping[str, str]
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    """The cells as text, cut at CELL_CHARACTERS; show them as text only, never as HTML."""
    rendered: tuple[PreviewRow, ...]
    problems: tuple[Text, ...] = ()
    """Rows of the head that cannot be used, with their line."""
    refusal: StudioError | None = None
    """Why the rows cannot be trained on as they are: format unclear, or no chat template."""


def preview(spec: DatasetSpec, tokenizer: Any | None, *, rows: int = 5) -> Preview:
    """Return a Preview of the first `rows` rows, reading no more than the head of the file.

    Raises StudioError when the source cannot be read at all; other refusals come in `refusal`.
    """
    source = read_rows(spec.source)
    head = source.sample[:rows]
    guess: Guess | None = None
    refusal: StudioError | None = None
    rendered: list[PreviewRow] = []
    problems: list[RowProblem] = []
    try:
        guess = sniff(source.columns, [row.values for row in source.sample if row.problem is None], spec)
    except StudioError as error:
        refusal = error
    if guess is not None:
        rendered, problems, refusal = show_rows(head, guess, spec, tokenizer)
    return Preview(
        source=spec.source,
        format=guess.format.name if guess else "",
        confidence=guess.confidence if guess else 0.0,
        reason=guess.reason if guess else None,
        mapping=guess.mapping if guess else {},
        columns=source.columns,
        rows=tuple({name: _show_cell(cell) for name, cell in row.values.items()} for row in head),
        rendered=tuple(rendered),
        problems=tuple(problem.sentence for problem in problems),
        refusal=refusal,
    )


def show_rows(
    rows: tuple[Row, ...], guess: Guess, spec: DatasetSpec, tokenizer: Any | None
) -> tuple[list[PreviewRow], list[RowProblem], StudioError | None]:
    """Return `rows` as PreviewRows, the problems of those that cannot be used, and what stops all of them."""
    shown: list[PreviewRow] = []
    problems: list[RowProblem] = []
    refusal: StudioError | None = None
    renderer = Renderer(tokenizer, spec.train_on) if tokenizer is not None else None
    for row in rows:
        try:
            conversation = read_conversation(row, guess).with_system(spec.system_prompt)
            rendered = None
            if renderer is not None and refusal is None:
                rendered = renderer.tokenize([renderer.lay_out(conversation)], spec.max_length)[0]
        except RowError as error:
            problems.append(RowProblem(line=row.line, code=error.code, message=error.message))
            continue
        except StudioError as error:
            refusal, rendered = error, None
        shown.append(_show_row(row.line, conversation, rendered, tokenizer))
    return shown, problems, refusal


def _show_row(line: int, conversation: Conversation, rendered: Rendered | None, tokenizer: Any) -> PreviewRow:
    if rendered is None:
        return PreviewRow(
            line=line, messages=conversation.messages, text=conversation.text, tokens=(), cut=False
        )
    ids = rendered.token_ids[:TOKENS_SHOWN].tolist()
    words = tokenizer.batch_decode([[one] for one in ids], clean_up_tokenization_spaces=False)
    tokens = tuple(
        TokenView(id=one, text=word, trained=trained)
        for one, word, trained in zip(ids, words, rendered.trained[:TOKENS_SHOWN].tolist(), strict=True)
    )
    return PreviewRow(
        line=line, messages=conversation.messages, text=rendered.text, tokens=tokens, cut=rendered.cut
    )


def _show_cell(cell: object) -> str:
    words = "" if cell is None else str(cell)
    return words if len(words) <= CELL_CHARACTERS else words[:CELL_CHARACTERS] + "…"
