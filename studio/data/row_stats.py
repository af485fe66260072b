"""What is cheaply known of every row: its hash with case and white space folded, its size, its turns, its secrets.

Collected once, while the rows are converted (about 5 us a row of 700 bytes), so that statistics and transforms need
not read the rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from xxhash import xxh3_64_intdigest

from studio.data.conversation import Conversation, Message
from studio.data.secrets import SECRET_BITS, find_secrets
from studio.data.unicode_scripts import SCRIPTS, count_scripts

BATCH_ROWS = 256
DESIRABLE = 1 << 24
UNDESIRABLE = 1 << 25
FOLD = bytes(
    0x20 if chr(sign).isspace() else sign + 32 if 0x41 <= sign <= 0x5A else sign for sign in range(128)
) + bytes(range(128, 256))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowTraits:
    """Columns of equal length, one entry a row."""

    hashes: np.ndarray
    """uint64 [rows]: equal where two rows are, but for case and white space."""
    characters: np.ndarray
    """int64 [rows]: of all messages, or of the text."""
    answer_characters: np.ndarray
    """int64 [rows]: of what is learned; blank answers count as 0. In text: the text; in preferences: the better one."""
    turns: np.ndarray
    """int64 [rows]: messages that are no system prompt; 1 for a text."""
    flags: np.ndarray
    """uint32 [rows]: SECRET_BITS, and DESIRABLE or UNDESIRABLE."""
    letters: np.ndarray
    """int64 [len(SCRIPTS)]: of all rows together."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.hashes)


class TraitCollector:
    """Takes rows one at a time; `traits()` gives what is known so far."""

    def __init__(self) -> None:
        self._parts: list[RowTraits] = []
        self._waiting: list[Conversation] = []

    def add(self, conversation: Conversation) -> None:
        """Take one more row."""
        self._waiting.append(conversation)
        if len(self._waiting) == BATCH_ROWS:
            self._parts.append(collect_traits(self._waiting))
            self._waiting = []

    def traits(self) -> RowTraits:
        """Return the Traits of all rows taken, in their order."""
        if self._waiting:
            self._parts.append(collect_traits(self._waiting))
            self._waiting = []
        self._parts = [join_traits(self._parts)]
        return self._parts[0]


def collect_traits(conversations: Sequence[Conversation]) -> RowTraits:
    """Return the Traits of a batch of rows; some hundred at a time are fastest."""
    words = [read_words(conversation) for conversation in conversations]
    flags = [_flag_label(conversation) for conversation in conversations]
    for number, name in find_secrets(words):
        flags[number] |= SECRET_BITS[name]
    return RowTraits(
        hashes=np.array([hash_folded(conversation) for conversation in conversations], dtype=np.uint64),
        characters=np.array(
            [_count_characters(conversation) for conversation in conversations], dtype=np.int64
        ),
        answer_characters=np.array(
            [count_answer(conversation) for conversation in conversations], dtype=np.int64
        ),
        turns=np.array([count_turns(conversation) for conversation in conversations], dtype=np.int64),
        flags=np.array(flags, dtype=np.uint32),
        letters=count_scripts(words),
    )


def join_traits(parts: Sequence[RowTraits]) -> RowTraits:
    """Return the Traits of all rows of `parts`, behind each other."""

    def join(name: str, kind: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, kind), *(getattr(part, name) for part in parts)], dtype=kind)

    return RowTraits(
        hashes=join("hashes", np.uint64),
        characters=join("characters", np.int64),
        answer_characters=join("answer_characters", np.int64),
        turns=join("turns", np.int64),
        flags=join("flags", np.uint32),
        letters=sum((part.letters for part in parts), np.zeros(len(SCRIPTS), np.int64)),
    )


def fold(words: str) -> str:
    """Return `words` without differences in case, and each stretch of white space as one space."""
    if words.isascii():
        return _fold_ascii(words.encode("ascii")).decode("ascii")
    return " ".join(words.split()).casefold()


def hash_folded(conversation: Conversation) -> int:
    """Return 64 bits (xxh3) that two rows share when they say the same, case and white space aside."""
    key = _spell(conversation)
    if key.isascii():
        return xxh3_64_intdigest(_fold_ascii(key.encode("ascii")))
    return xxh3_64_intdigest(" ".join(key.split()).casefold().encode("utf-8", "surrogatepass"))


def read_words(conversation: Conversation) -> str:
    """Return everything that people or models wrote in the row, a line each."""
    messages = conversation.messages
    if conversation.chosen or conversation.rejected:
        messages = (*messages, *conversation.chosen, *conversation.rejected)
    parts = [part for message in messages for part in _parts(message)]
    return "\n".join((*parts, conversation.text) if conversation.text else parts)


def read_talk(conversation: Conversation) -> str:
    """Return what makes the row what it is: its words without the system prompt, which many rows share."""
    if conversation.kind == "tokens":
        return " ".join(map(str, conversation.token_ids))
    talk = tuple(message for message in conversation.messages if message.role != "system")
    return read_words(
        conversation if len(talk) == len(conversation.messages) else conversation._replace(messages=talk)
    )


def read_answers(conversation: Conversation) -> tuple[str, ...]:
    """Return what is learned: the answers, the better answer of a preference, or the text itself."""
    if conversation.text:
        return (conversation.text,)
    messages = conversation.chosen or conversation.messages
    return tuple("\n".join(_parts(message)) for message in messages if message.role == "assistant")


def count_answer(conversation: Conversation) -> int:
    """Return the characters of `read_answers`, blank ones as none."""
    if conversation.kind == "tokens":
        return len(conversation.token_ids)
    return sum(len(answer) for answer in read_answers(conversation) if answer and not answer.isspace())


def count_turns(conversation: Conversation) -> int:
    """Return how many messages are no system prompt; 1 for a text."""
    messages = (*conversation.messages, *conversation.chosen)
    return sum(message.role != "system" for message in messages) if messages else 1


def _fold_ascii(words: bytes) -> bytes:
    words = words.translate(FOLD)
    while b"  " in words:
        words = words.replace(b"  ", b" ")
    return words.strip(b" ")


def _parts(message: Message) -> tuple[str, ...]:
    if not (message.reasoning or message.tool_calls):
        return (message.content,)
    calls = (f"{call.name} {dict(call.arguments)}" for call in message.tool_calls)
    return tuple(part for part in (message.reasoning, message.content, *calls) if part)


def _spell(conversation: Conversation) -> str:
    """Return all that tells two rows apart. NUL stands in no row; spaces around it keep folding within a part."""
    parts = [f"{message.role}\0 {' '.join(_parts(message))} \0" for message in conversation.messages]
    if conversation.text:
        parts.append(conversation.text)
    if conversation.chosen or conversation.rejected:
        for side in (conversation.chosen, conversation.rejected):
            parts.append(" \0\0 ")
            parts += [f"{message.role}\0 {' '.join(_parts(message))} \0" for message in side]
    for more in (conversation.label, conversation.tools, conversation.extras, conversation.images):
        if more or more is False:
            parts.append(f" \0\0\0 {more}")
    if conversation.token_ids:
        parts.append(f"{conversation.token_ids}{conversation.labels}")
    return "".join(parts)


def _count_characters(conversation: Conversation) -> int:
    if conversation.kind == "tokens":
        return len(conversation.token_ids)
    messages: Iterable[Message] = (*conversation.messages, *conversation.chosen)
    return len(conversation.text) + sum(len(message.content) for message in messages)


def _flag_label(conversation: Conversation) -> int:
    return 0 if conversation.label is None else DESIRABLE if conversation.label else UNDESIRABLE
