"""Words that a model reads as control signs, looked for in what people wrote (RowCode.CONTROL_TOKENS)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from studio.data.conversation import Message

WELL_KNOWN = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
    ),
    *("<|begin_of_text|>", "<|end_of_text|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
)
"""Those of the common families, for looking without a tokenizer."""
LEAD_CHARACTERS = 2


class ControlWords:
    """A set of control words, and a quick way to find them."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(sorted(set(words) - {""}, key=len, reverse=True))
        self.pattern = _compile(self.words)
        leads = {word[:LEAD_CHARACTERS] for word in self.words}
        # Some tokenizers have a thousand: only those are looked for whose first characters are there.
        self._patterns = [
            (lead, _compile([word for word in self.words if word.startswith(lead)])) for lead in leads
        ]

    def find(self, text: str) -> str:
        """Return the first control word in `text`; "" when there is none."""
        place, word = len(text), ""
        for lead, pattern in self._patterns:
            if lead in text:
                found = pattern.search(text)
                if found and found.start() <= place:
                    place, word = (
                        found.start(),
                        max(word if found.start() == place else "", found[0], key=len),
                    )
        return word

    def strip(self, text: str) -> str:
        """Return `text` without control words."""
        return self.pattern.sub("", text)

    def end_of_first_run(self, text: str) -> int:
        """Return where the first control words of `text`, standing side by side, end; 0 when there are none."""
        found = self.pattern.search(text)
        end = 0
        while found:
            end = found.end()
            found = self.pattern.match(text, end)
        return end

    def end_of_last(self, text: str) -> int:
        """Return where the last control word of `text` ends; 0 when there is none."""
        return max((found.end() for found in self.pattern.finditer(text)), default=0)

    def find_in_message(self, message: Message) -> str:
        """Return the first control word anywhere in `message`; "" when there is none."""
        found = self.find(message.content)
        if not found and (message.reasoning or message.tool_calls or message.name or message.call_id):
            found = next(filter(None, map(self.find, _list_texts(message))), "")
        return found


def _compile(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, words)) or "(?!)")


def say_value(value: Any) -> str:
    """Return `value` as JSON."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _list_texts(message: Message) -> Iterator[str]:
    yield message.reasoning
    yield message.name
    yield message.call_id
    for call in message.tool_calls:
        yield call.name
        yield call.id
        yield say_value(call.arguments)
