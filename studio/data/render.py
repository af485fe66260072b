"""A Conversation through the chat template to token ids, and which of them are learned.

The loss mask is our own: for each answer, the template renders what stands before it (with the generation prompt)
and up to its end; what lies between is the answer. Templates that rewrite earlier turns are read by a marker put in
the answer's place. The token that ends a turn is learned, the white space that a template puts behind it is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.text import text
from studio.data.conversation import Conversation, Message
from studio.data.row import RowError

MARKER = "Q7xAnswerStandsHereZ9k"
"""Letters and digits only, so that no template trims, escapes or splits it."""
Span = tuple[int, int]
"""(first, one past the last) character."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """An example as text, before it becomes tokens."""

    text: str
    trained: tuple[Span, ...]
    """The characters that are learned."""
    plain: bool = False
    """True for text that no template rendered: the tokenizer adds its own first token."""
    notes: tuple[str, ...] = ()
    """What a person should know of it: `control`: a message spells a special token, which the model will read as
    one; `system_lost`: the template leaves the system prompt out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """An example as the model sees it."""

    token_ids: np.ndarray
    """int32 [tokens]"""
    trained: np.ndarray
    """bool [tokens]; never the first, which nothing predicts."""
    text: str
    cut: bool
    """True when it was longer than the limit and its end was cut off."""
    notes: tuple[str, ...] = ()
    """As in Layout."""


def render(conversation: Conversation, tokenizer: Any, train_on: str, max_length: int) -> Rendered:
    """Return `conversation` as tokens with their loss mask.

    `train_on`: `answers`, `last_answer` or `everything`. Raises StudioError without a chat template where one is
    needed, RowError when the template refuses this conversation.
    """
    renderer = Renderer(tokenizer, train_on)
    return renderer.tokenize([renderer.lay_out(conversation)], max_length)[0]


class Renderer:
    """Renders many conversations with one tokenizer."""

    def __init__(self, tokenizer: Any, train_on: str) -> None:
        self.tokenizer = tokenizer
        self.train_on = train_on
        self.eos = tokenizer.eos_token or ""
        added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        specials = sorted({*added, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True)
        self.specials = re.compile(f"(?:{'|'.join(map(re.escape, specials))})+" if specials else "(?!)")

    def lay_out(self, conversation: Conversation) -> Layout:
        """Return the text of `conversation` and the characters that are learned. Raises RowError, StudioError."""
        parts = [conversation.text, *(message.content for message in conversation.messages)]
        notes = ("control",) if any(map(self.specials.search, parts)) else ()
        if conversation.kind == "text":
            words = self._end(conversation.text)
            return Layout(text=words, trained=((0, len(words)),), plain=True, notes=notes)
        if self.tokenizer.chat_template:
            words, spans = self._render_chat(conversation.messages)
            notes += self._check_prompts(conversation.messages, words)
            return Layout(text=words, trained=spans, notes=notes)
        if conversation.kind == "completion":
            return self._join_completion(conversation.messages, notes)
        raise StudioError(
            text("data.render.no_template"),
            text("data.render.no_template.why"),
            text("data.render.no_template.fix"),
        )

    def tokenize(self, layouts: Sequence[Layout], max_length: int | None) -> list[Rendered]:
        """Return each Layout as tokens; of those longer than `max_length` the start is kept (None: all)."""
        results: list[Rendered | None] = [None] * len(layouts)
        for plain in (False, True):
            chosen = [i for i, layout in enumerate(layouts) if layout.plain == plain]
            for i, (ids, trained) in zip(
                chosen, self._encode([layouts[i] for i in chosen], plain), strict=True
            ):
                trained[:1] = False
                results[i] = Rendered(
                    token_ids=ids[:max_length],
                    trained=trained[:max_length],
                    text=layouts[i].text,
                    cut=max_length is not None and len(ids) > max_length,
                    notes=layouts[i].notes,
                )
        return results

    def _encode(self, layouts: Sequence[Layout], plain: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        if not layouts:
            return []
        if not self.tokenizer.is_fast:
            return [self._encode_in_parts(layout, plain) for layout in layouts]
        encoded = self.tokenizer(
            [layout.text for layout in layouts],
            add_special_tokens=plain,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            truncation=False,
            verbose=False,
        )
        results = []
        for layout, ids, offsets in zip(
            layouts, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
            trained = np.zeros(len(ids), dtype=bool)
            astride = False
            for start, end in layout.trained:
                trained |= (places[:, 0] < end) & (places[:, 1] > start)
                for edge in (start, end):
                    astride |= bool(((places[:, 0] < edge) & (places[:, 1] > edge)).any())
            row = np.asarray(ids, dtype=np.int32), trained
            results.append(self._part_edges(layout, plain, row) if astride else row)
        return results

    def _part_edges(self, layout: Layout, plain: bool, whole: tuple[np.ndarray, np.ndarray]):
        """Where a token lies across the edge of an answer, part it there, as the prompt will be when the model answers.

        Tokenizers that put a space before each stretch would change the text: theirs stays whole and is trained.
        """
        parted = self._encode_in_parts(layout, plain)
        same = self.tokenizer.decode(parted[0]) == self.tokenizer.decode(whole[0])
        return parted if same else whole

    def _encode_in_parts(self, layout: Layout, plain: bool) -> tuple[np.ndarray, np.ndarray]:
        """For tokenizers that tell no offsets: each stretch of text is tokenised by itself."""
        ids: list[int] = []
        trained: list[bool] = []
        places = [0, *(place for span in layout.trained for place in span), len(layout.text)]
        for number, (start, end) in enumerate(zip(places, places[1:], strict=False)):
            if start < end:
                part = self.tokenizer(layout.text[start:end], add_special_tokens=plain and not ids)[
                    "input_ids"
                ]
                ids += part
                trained += [number % 2 == 1] * len(part)
        return np.asarray(ids, dtype=np.int32), np.asarray(trained, dtype=bool)

    def _end(self, words: str) -> str:
        """Return `words` with the tokenizer's end token behind them."""
        return words if self.eos and words.endswith(self.eos) else words + self.eos

    def _join_completion(self, messages: Sequence[Message], notes: tuple[str, ...]) -> Layout:
        system = "".join(f"{message.content}\n\n" for message in messages if message.role == "system")
        prompt = system + "".join(message.content for message in messages if message.role == "user")
        answer = "".join(message.content for message in messages if message.role == "assistant")
        words = self._end(prompt + answer)
        start = 0 if self.train_on == "everything" else len(prompt)
        return Layout(text=words, trained=((start, len(words)),), plain=True, notes=notes)

    def _render_chat(self, messages: Sequence[Message]) -> tuple[str, tuple[Span, ...]]:
        full = self._apply(messages)
        if self.train_on == "everything":
            full = full if self.specials.search(full) else full + self.eos
            return full, ((0, len(full)),)
        answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
        wanted = answers[-1:] if self.train_on == "last_answer" else answers
        spans = tuple(self._find_answer(full, messages, i) for i in wanted)
        last_start, last_end = spans[-1]
        if wanted[-1] == len(messages) - 1 and not self.specials.search(full, last_start):
            # The template ends a turn with no special token: without one the model would never learn to stop.
            full = full[:last_end] + self.eos
            spans = (*spans[:-1], (last_start, len(full)))
        return full, spans

    def _check_prompts(self, messages: Sequence[Message], full: str) -> tuple[str, ...]:
        """Return the notes on what the template left out. Raises RowError when it is a question."""
        notes = []
        for number, message in enumerate(messages, start=1):
            lines = [line.strip() for line in message.content.splitlines() if line.strip()]
            if message.role in ("system", "user") and lines and not any(line in full for line in lines):
                if message.role == "user":
                    raise RowError("", text("data.row.turn_lost", number=number))
                notes.append("system_lost")
        return tuple(notes)

    def _apply(self, messages: Sequence[Message], generation_prompt: bool = False) -> str:
        """Return the messages through the chat template. Raises RowError when the template refuses them."""
        from jinja2 import TemplateError

        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=generation_prompt
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise RowError("", text("data.row.template", message=str(error)[:160])) from error

    def _find_answer(self, full: str, messages: Sequence[Message], i: int) -> Span:
        content = messages[i].content.strip()
        between = self._span_between(full, messages, i)
        if between is not None and content in full[slice(*between)]:
            return self._narrow(full, between, messages, i, content)
        by_marker = self._span_by_marker(full, messages, i)
        if by_marker is not None:
            return by_marker
        if between is not None and self.specials.sub("", full[slice(*between)]).strip():
            return between
        raise RowError("", text("data.row.answer_lost", number=i + 1))

    def _span_between(self, full: str, messages: Sequence[Message], i: int) -> Span | None:
        """Return what lies between the prompt before answer `i` and its end; None where turns are rewritten."""
        if i == 0:
            return None
        try:
            before = self._apply(messages[:i], generation_prompt=True)
            after = full if i == len(messages) - 1 else self._apply(messages[: i + 1])
        except RowError:
            return None  # Some templates refuse a conversation that is not complete.
        if full.startswith(before) and full.startswith(after) and len(before) < len(after):
            return len(before), len(after)
        return None

    def _narrow(self, full: str, span: Span, messages: Sequence[Message], i: int, content: str) -> Span:
        """Return `span` without a header that the generation prompt does not give, ending with the end of turn."""
        start, end = span
        place = full.index(content, start, end)
        if full[start:place].strip() and self._apply(messages[:i]) == full[:start]:
            start = place
        behind = place + len(content)
        return start, behind + self._end_of_turn(full[behind:end])

    def _span_by_marker(self, full: str, messages: Sequence[Message], i: int) -> Span | None:
        """Return where answer `i` stands in `full`, found by rendering a marker in its place."""
        last = max(k for k, message in enumerate(messages) if message.role == "assistant")
        try:
            head, found, tail = self._apply(_mark(messages, i)).partition(MARKER)
            ending = self._apply(_mark(messages[: last + 1], last)).partition(MARKER)[2]
        except RowError:
            return None
        start, end = len(head), len(full) - len(tail)
        if not (found and full.startswith(head) and full.endswith(tail) and start < end):
            return None
        # What stands behind this answer and behind the last one alike ends a turn; the rest belongs to other turns.
        shared = os.path.commonprefix([tail, ending])
        if self.specials.search(tail) and not self.specials.search(shared):
            return start, end
        return start, end + self._end_of_turn(shared)

    def _end_of_turn(self, tail: str) -> int:
        """Return how much of the text behind an answer ends its turn: up to its first special tokens, else all."""
        found = self.specials.search(tail)
        return found.end() if found else len(tail)


def _mark(messages: Sequence[Message], i: int) -> list[Message]:
    return [*messages[:i], Message("assistant", MARKER), *messages[i + 1 :]]
