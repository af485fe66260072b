"""A Conversation through the chat template to token ids, and which of them are learned.

The loss mask is our own (studio.data.mask): an answer is learned from where its prompt ends to the token that ends its
turn; the white space that a template puts behind that is not. What a template loses is refused or noted, never passed
over.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.i18n import text
from studio.data.conversation import Conversation, Message
from studio.data.encoder import Encoder
from studio.data.mask import Mask
from studio.data.row import RowError
from studio.data.row_codes import RowCode
from studio.data.special_tokens import ControlWords, say_value
from studio.data.template import ChatTemplate, compile_like
from studio.data.template_drops import find_lost, is_whole, is_written, name_of
from studio.data.template_sandbox import require_safe
from studio.data.template_skeleton import Skeleton, Span, Tools, match, shape_of
from studio.data.template_turns import TurnWriter
from studio.data.templates.catalogue import is_ours, read_choice
from studio.data.templates.fitting import find_split_end, refuse_missing

SHAPES_KEPT = 1024
"""Skeletons that are kept; a data set has few shapes unless every row brings tools of its own."""
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")
UNTRAINED = -100
"""The label of a token that is not learned, in data that come as tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """An example as text, before it becomes tokens."""

    text: str
    trained: tuple[Span, ...]
    """The characters that are learned, in order."""
    weights: tuple[float, ...] = ()
    """How much each of `trained` counts, or each of `token_ids`; empty: each once."""
    plain: bool = False
    """True for text that no template rendered: the tokenizer adds its own first token."""
    notes: tuple[str, ...] = ()
    """What a person should know of it, as texts data.note.NAME say it: `system_lost`, `tools_lost`, `reasoning_lost`:
    the template leaves these out; `laid_out`: a text that is a conversation in this template already; `weights_lost`:
    all is learned alike."""
    token_ids: np.ndarray | None = None
    """int32 [tokens] of an example that comes as tokens; `text` is what they say."""
    mask: np.ndarray | None = None
    """bool [tokens]: which of `token_ids` are learned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """An example as the model sees it."""

    token_ids: np.ndarray
    """int32 [tokens]"""
    trained: np.ndarray
    """bool [tokens]; never the first, which nothing predicts."""
    weights: np.ndarray | None
    """float32 [tokens]: how much each trained token counts; None: each once."""
    text: str
    cut: bool
    """True when it was longer than the limit and its end was cut off."""
    notes: tuple[str, ...] = ()
    """As in Layout."""


def render(
    conversation: Conversation, tokenizer: Any, train_on: str, max_length: int | None, **settings: Any
) -> Rendered:
    """Return `conversation` as tokens with their loss mask; `settings` as Renderer takes them.

    Raises StudioError without a chat template where one is needed, RowError when this conversation cannot be used.
    """
    renderer = Renderer(tokenizer, train_on, **settings)
    return renderer.tokenize([renderer.lay_out(conversation)], max_length)[0]


class Renderer:
    """Renders many conversations with one tokenizer and template."""

    def __init__(
        self,
        tokenizer: Any,
        train_on: str,
        template: str = "",
        *,
        reasoning: str = "keep",
        vocab_size: int | None = None,
        cache: Path | None = None,
    ) -> None:
        """`train_on`: `answers`, `last_answer`, `everything`, or `prompt` for the question alone, up to where the model
        is to answer; `template`: "" for the model's own, a name of the
        catalogue or the path of a .jinja file; `reasoning`: `keep` or `drop` the thoughts of answers; `vocab_size`:
        ids that the model knows (None: those of the tokenizer); `cache`: a folder for verdicts on templates.

        Raises StudioError for a template that does not exist, is none, or must not be used.
        """
        self.tokenizer = tokenizer
        self.train_on = train_on
        self.vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        self.eos = tokenizer.eos_token or ""
        self.encoder = Encoder(tokenizer)
        added = {token.content: token.special for token in tokenizer.added_tokens_decoder.values()}
        self.added = frozenset(added)
        """The words of all added tokens."""
        source = read_choice(template) if template else _read_own(tokenizer, tools=False)
        with_tools = source if template else _read_own(tokenizer, tools=True)
        given = getattr(tokenizer, "recipe_tokens", ())
        self.own = frozenset(one for one in given if one not in source and one not in with_tools)
        """Words that the recipe adds in order to have them in its rows; what the template writes is none of them."""
        words = ControlWords(word for word in added if word not in self.own)
        special = {*(word for word in added if added[word]), *tokenizer.all_special_tokens}
        self.controls = ControlWords(special - self.own)
        self._reasoning = reasoning
        self._cache = cache
        self.source = source
        """The chat template in use; "" when there is none."""
        self.split_end = find_split_end(source, self.added) if template else ""
        """The mark that ends an answer, where the tokenizer has no token for it; "" where it has, or another end."""
        self._masks: dict[bool, Mask] = {}
        self._turn_words: set[str] = set()
        for tools, own in ((False, source), (True, with_tools)):
            if own and tools and own == source:
                self._masks[True] = self._masks[False]
            elif own:
                self._masks[tools] = self._open(own, words)
        self._answer_controls = self._allow_signs()
        self._skeletons: dict[object, Skeleton | None] = {}

    def _open(self, source: str, words: ControlWords) -> Mask:
        if not is_ours(source):
            require_safe(source, self._cache)
        template = compile_like(self.tokenizer, source)
        self._turn_words |= _find_turn_words(template, words)
        if self._turn_words - set(self.controls.words):
            self.controls = ControlWords((*self.controls.words, *self._turn_words))
        writer = TurnWriter(
            template, keep_reasoning=self._reasoning == "keep", thinks="<think>" in words.words
        )
        return Mask(template, writer, self.controls, words)

    def _allow_signs(self) -> ControlWords:
        """Return what answers must not hold: what the template writes around tool calls may stand in them.

        What begins or ends a turn or a text may not.
        """
        sources = [mask.template.source for mask in self._masks.values()]
        named = map(self.tokenizer.special_tokens_map.get, NAMED)
        kept = self._turn_words.union(filter(None, named))
        return ControlWords(
            word for word in self.controls.words if word in kept or not any(word in one for one in sources)
        )

    # Laying out ------------------------------------------------------------------------------------------------------

    def lay_out(self, conversation: Conversation) -> Layout:
        """Return the text of `conversation` and the characters that are learned.

        Raises RowError TEMPLATE (the template refuses or loses something), CONTROL_TOKENS (a control word in it),
        BEYOND_VOCABULARY (a token id that the model has not) and WRONG_SHAPE (labels that do not fit); StudioError
        without a chat template.
        """
        kind = conversation.kind
        if self.train_on == "prompt":
            return self._lay_out_prompt(conversation.as_prompt())
        if kind == "tokens":
            return self._lay_out_tokens(conversation)
        if kind == "text":
            return self._lay_out_text(conversation.text)
        messages = (*conversation.messages, *conversation.chosen)
        self._refuse_control(messages, conversation.tools)
        if self._masks:
            # Of a pair the answer is all that follows the turns that both sides share.
            first = len(conversation.messages) if conversation.chosen else 0
            return self._lay_out_chat(messages, conversation.tools, first)
        if kind == "completion":
            return self._join_completion(messages)
        raise refuse_missing(self.added)

    def _lay_out_chat(self, messages: Sequence[Message], tools: Tools, first: int = 0) -> Layout:
        mask = self._masks.get(bool(tools)) or next(iter(self._masks.values()))
        messages, thoughts_lost = mask.writer.settle(messages)
        full = mask.template.render(mask.writer.write(messages), tools)
        spans, lost = self._find_spans(mask, full, messages, tools)
        if thoughts_lost:
            lost = {*lost, "reasoning"}
        if tools and not all(name in full for name in map(name_of, tools)):
            lost = {*lost, "tools"}
        notes = tuple(f"{name}_lost" for name in sorted(lost))
        if self.train_on == "everything":
            full = full if self.controls.find(full) else full + self.eos
            if any(message.weight not in (0, 1) for message in messages):
                notes = (*notes, "weights_lost")
            return Layout(text=full, trained=((0, len(full)),), notes=notes)
        wanted = [i for i in sorted(spans) if messages[i].learned and i >= first]
        wanted = wanted[-1:] if self.train_on == "last_answer" else wanted
        trained = [spans[i] for i in wanted]
        if wanted and wanted[-1] == len(messages) - 1:
            start, end = trained[-1]
            if not self.controls.find(full[start:]):
                # The template ends a turn with no special token: without one the model would never learn to stop.
                full = full[:end] + self.eos
                trained[-1] = start, len(full)
        weights = tuple(messages[i].weight for i in wanted)
        return Layout(
            text=full, trained=tuple(trained), weights=weights if {*weights} - {1} else (), notes=notes
        )

    def _lay_out_prompt(self, conversation: Conversation) -> Layout:
        messages, tools = conversation.messages, conversation.tools
        if not messages or messages[-1].role == "assistant":
            raise RowError(RowCode.WRONG_SHAPE, text("data.row.answered"))
        self._refuse_control(messages, tools)
        if not self._masks:
            if any(message.role not in ("system", "user") for message in messages):
                raise refuse_missing(self.added)
            return Layout(text=_join_asked(messages), trained=(), plain=True)
        mask = self._masks.get(bool(tools)) or next(iter(self._masks.values()))
        messages, lost = mask.writer.settle(messages)
        words = mask.template.render(mask.writer.write(messages), tools, generation_prompt=True)
        notes = ("reasoning_lost",) if lost else ()
        if tools and not all(name in words for name in map(name_of, tools)):
            notes = (*notes, "tools_lost")
        return Layout(text=words, trained=(), notes=notes)

    def _find_spans(
        self, mask: Mask, full: str, messages: Sequence[Message], tools: Tools
    ) -> tuple[Mapping[int, Span], frozenset[str]]:
        """Return where the answers stand in `full` and what is lost. Raises RowError TEMPLATE for what must not be."""
        shape = shape_of(messages, tools)
        if shape is None:
            skeleton = mask.build_skeleton(messages, tools)
        else:
            if shape not in self._skeletons:
                if len(self._skeletons) >= SHAPES_KEPT:
                    self._skeletons.clear()
                self._skeletons[shape] = mask.build_skeleton(messages, tools)
            skeleton = self._skeletons[shape]
        spans = match(skeleton, full, messages) if skeleton is not None else None
        if spans is not None:
            lost = skeleton.lost
        else:
            lost = find_lost(full, messages)
            spans = mask.find_answers(full, messages, tools)
            for i, (start, end) in spans.items():
                if not is_whole(messages[i], full[start:end]):
                    raise RowError(RowCode.TEMPLATE, text("data.row.answer_lost", number=i + 1))
        for i, message in enumerate(messages):
            for call in message.tool_calls:
                if not is_written(call, full[slice(*spans[i])]):
                    raise RowError(
                        RowCode.TEMPLATE, text("data.row.tool_call_lost", name=call.name[:80], number=i + 1)
                    )
        return spans, lost

    def _lay_out_text(self, words: str) -> Layout:
        notes: tuple[str, ...] = ()
        body = words.removesuffix(self.eos) if self.eos else words
        found = self.controls.find(body)
        if found:
            if not self._is_laid_out(words):
                raise RowError(RowCode.CONTROL_TOKENS, text("data.row.control.text", word=found))
            notes = ("laid_out",)
            return Layout(text=words, trained=((0, len(words)),), notes=notes)
        words = self._end(words)
        return Layout(text=words, trained=((0, len(words)),), plain=True, notes=notes)

    def _is_laid_out(self, words: str) -> bool:
        """Return whether `words` hold the header that this template puts before an answer."""
        for mask in self._masks.values():
            turns = [{"role": "user", "content": "ask"}]
            bare = mask.template.try_render(turns) or ""
            asked = mask.template.try_render(turns, generation_prompt=True) or ""
            header = asked.removeprefix(bare).strip()
            if header and self.controls.find(header) and header in words:
                return True
        return False

    def _lay_out_tokens(self, conversation: Conversation) -> Layout:
        ids, labels = conversation.token_ids, conversation.labels
        for place, one in enumerate(ids, start=1):
            if not 0 <= one < self.vocab_size:
                raise RowError(
                    RowCode.BEYOND_VOCABULARY,
                    text("data.row.token_id", place=place, id=one, last=self.vocab_size - 1),
                )
        if labels and len(labels) != len(ids):
            raise RowError(
                RowCode.WRONG_SHAPE, text("data.row.labels.length", labels=len(labels), tokens=len(ids))
            )
        for place, (one, label) in enumerate(zip(ids, labels, strict=False), start=1):
            if label not in (UNTRAINED, one):
                raise RowError(
                    RowCode.WRONG_SHAPE, text("data.row.labels.other", place=place, label=label, id=one)
                )
        mask = np.asarray(labels, dtype=np.int64) != UNTRAINED if labels else np.ones(len(ids), dtype=bool)
        array = np.asarray(ids, dtype=np.int32)
        known = [one for one in ids if one < len(self.tokenizer)]
        words = self.tokenizer.decode(known)
        return Layout(text=words, trained=(), weights=conversation.weights, token_ids=array, mask=mask)

    def _join_completion(self, messages: Sequence[Message]) -> Layout:
        prompt = _join_asked(messages)
        answer = "".join(message.content for message in messages if message.role == "assistant")
        words = self._end(prompt + answer)
        start = 0 if self.train_on == "everything" else len(prompt)
        return Layout(text=words, trained=((start, len(words)),), plain=True)

    def _end(self, words: str) -> str:
        """Return `words` with the tokenizer's end token behind them."""
        return words if self.eos and words.endswith(self.eos) else words + self.eos

    def _refuse_control(self, messages: Sequence[Message], tools: Tools) -> None:
        for number, message in enumerate(messages, start=1):
            controls = self._answer_controls if message.role == "assistant" else self.controls
            if word := controls.find_in_message(message):
                raise RowError(RowCode.CONTROL_TOKENS, text("data.row.control", number=number, word=word))
        if tools and (word := self.controls.find(say_value(tools))):
            raise RowError(RowCode.CONTROL_TOKENS, text("data.row.control.tools", word=word))

    # Tokens ----------------------------------------------------------------------------------------------------------

    def tokenize(self, layouts: Sequence[Layout], max_length: int | None) -> list[Rendered]:
        """Return each Layout as tokens; of those longer than `max_length` the start is kept (None: all)."""
        results: list[Rendered | None] = [None] * len(layouts)
        for plain in (False, True):
            chosen = [i for i, one in enumerate(layouts) if one.plain == plain and one.token_ids is None]
            encoded = self.encoder.encode(
                [layouts[i].text for i in chosen], [layouts[i].trained for i in chosen], plain
            )
            for i, (ids, owners) in zip(chosen, encoded, strict=True):
                given = layouts[i].weights
                weights = np.asarray((1.0, *given), dtype=np.float32)[owners] if given else None
                results[i] = _cut(layouts[i], ids, owners > 0, weights, max_length)
        for i, layout in enumerate(layouts):
            if layout.token_ids is not None:
                weights = np.asarray(layout.weights, dtype=np.float32) if layout.weights else None
                results[i] = _cut(layout, layout.token_ids, layout.mask.copy(), weights, max_length)
        return results


def tokenize_rows(renderer: Renderer, layouts: Sequence[Sequence[Layout]]) -> list[tuple[Rendered, int]]:
    """Return each row, its sequences behind each other, and where its second one begins (0: it has none).

    Raises RowError SAME_ANSWERS where both are the same tokens, though not the same words.
    """
    flat = iter(renderer.tokenize([one for sides in layouts for one in sides], None))
    rows = []
    for sides in layouts:
        first, *more = itertools.islice(flat, len(sides))
        if more and np.array_equal(first.token_ids, more[0].token_ids):
            raise RowError(RowCode.SAME_ANSWERS, text("data.row.pair_same_tokens"))
        rows.append((replace(
            first,
            token_ids=np.concatenate([one.token_ids for one in (first, *more)]),
            trained=np.concatenate([one.trained for one in (first, *more)]),
            weights=None,
        ), len(first.token_ids)) if more else (first, 0))  # fmt: skip
    return rows


def _cut(
    layout: Layout, ids: np.ndarray, trained: np.ndarray, weights: np.ndarray | None, max_length: int | None
) -> Rendered:
    trained[:1] = False
    return Rendered(
        token_ids=ids[:max_length],
        trained=trained[:max_length],
        weights=None if weights is None else weights[:max_length],
        text=layout.text,
        cut=max_length is not None and len(ids) > max_length,
        notes=layout.notes,
    )


def _join_asked(messages: Sequence[Message]) -> str:
    """Return what is asked as a plain text, for a tokenizer without a template."""
    system = "".join(f"{message.content}\n\n" for message in messages if message.role == "system")
    return system + "".join(message.content for message in messages if message.role == "user")


def _read_own(tokenizer: Any, tools: bool) -> str:
    """Return the tokenizer's own template; "" when it has none."""
    if not tokenizer.chat_template:
        return ""
    try:
        return tokenizer.get_chat_template(tools=[{}] if tools else None)
    except ValueError:
        return ""  # Several, and none of them for this.


def _find_turn_words(template: ChatTemplate, words: ControlWords) -> set[str]:
    """Return the added tokens that the template writes around turns; some tokenizers do not call them special."""
    question, answer = {"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}
    written = [
        template.try_render([question], generation_prompt=True),
        template.try_render([question, answer, question, answer]),
        template.try_render([{"role": "system", "content": "be"}, question, answer]),
    ]
    found = {word for full in written if full for word in words.pattern.findall(full)}
    return {word for word in found if word.strip() and "think" not in word}
