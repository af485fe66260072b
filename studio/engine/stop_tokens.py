"""What ends an answer: token ids, and the words of a template whose end mark is no token of the tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends an answer of one model in its template."""

    ids: tuple[int, ...]
    """The model's own, the tokenizer's, and the template's where it is one token."""
    words: str = ""
    """The template's where it is several pieces; "" where it is one token."""

    def cut(self, answer: str, *, growing: bool = False) -> str:
        """Return `answer` up to its end mark; of one that is `growing` also without what may become the mark."""
        return cut_at(answer, (self.words,), growing=growing)


def cut_at(answer: str, marks: Iterable[str], *, growing: bool = False) -> str:
    """Return `answer` up to the first of `marks`; of one that is `growing` also without what may become one of them.

    Empty marks count for nothing.
    """
    marks = [mark for mark in marks if mark]
    places = [place for place in map(answer.find, marks) if place >= 0]
    if places:
        return answer[: min(places)]
    if growing:
        beginnings = {mark[:length] for mark in marks for length in range(1, len(mark))}
        return answer.removesuffix(max(filter(answer.endswith, beginnings), key=len, default=""))
    return answer


def find_ends(tokenizer: Any, own: int | Iterable[int] | None) -> Ends:
    """Return what ends an answer; `own`: the eos_token_id of the model's generation_config."""
    ids = [tokenizer.eos_token_id, *([own] if own is None or isinstance(own, int) else own)]
    mark, words = _find_mark(tokenizer), ""
    if mark:
        first = tokenizer(mark, add_special_tokens=False)["input_ids"][0]
        if first in tokenizer.added_tokens_decoder:
            ids.append(first)
        else:
            words = mark
    return Ends(tuple(sorted({one for one in ids if one is not None})), words)


def set_ends(model: Any, tokenizer: Any) -> Ends:
    """Let generation with `model`, here and wherever it is loaded from its files, stop at the ids of its Ends."""
    ends = find_ends(tokenizer, model.generation_config.eos_token_id)
    if ends.ids:
        model.generation_config.eos_token_id = list(ends.ids) if len(ends.ids) > 1 else ends.ids[0]
    return ends


def _find_mark(tokenizer: Any) -> str:
    """Return what the template writes first behind an answer; "" without a template, or where it writes nothing."""
    if not tokenizer.chat_template:
        return ""
    turns = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]
    try:
        words = tokenizer.apply_chat_template(turns, tokenize=False)
    except TemplateError:
        return ""
    return next(iter(words.rpartition("say")[2].split()), "")
