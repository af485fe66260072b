"""What a person should know of a row that is used all the same, by its turns: the codes that are only noted."""

from __future__ import annotations

from studio.core.i18n import Text, text
from studio.data.conversation import Conversation
from studio.data.formats.open_blanks import find_blank
from studio.data.row_codes import RowCode

Note = tuple[str, Text]
"""(code, sentence)"""


def note_turns(conversation: Conversation) -> tuple[Note, ...]:
    """Return what is odd in the order of turns, and a blank left open in their words, one note for each code."""
    messages = conversation.messages
    kind = conversation.kind
    if kind == "preference":
        messages += conversation.chosen
    previous, odd = "", False
    for message in messages:
        role = message.role
        if role == previous == "user" or (role == "system" and previous):
            odd = True
            break
        previous = role
    notes = _note_blanks(conversation)
    if not odd and (previous == "assistant" or kind == "rl" or not messages):
        return tuple(notes)
    roles = [message.role for message in messages]
    if roles[-1] != "assistant" and kind != "rl":
        notes.append((RowCode.ENDS_WITH_QUESTION, text("data.row.ends_open", number=len(roles))))
    for number, pair in enumerate(zip(roles, roles[1:], strict=False), start=2):
        if pair == ("user", "user"):
            notes.append(
                (RowCode.TWO_QUESTIONS, text("data.row.two_questions", first=number - 1, second=number))
            )
            break
    for number, role in enumerate(roles[1:], start=2):
        if role == "system":
            notes.append((RowCode.SYSTEM_NOT_FIRST, text("data.row.system_late", number=number)))
            break
    return tuple(notes)


def _note_blanks(conversation: Conversation) -> list[Note]:
    """Return that a template left a blank open in the words of a row, with the first one."""
    turns = conversation.messages
    if conversation.chosen:
        turns += conversation.chosen + conversation.rejected
    for turn in turns:
        words = turn.content
        if ("{" in words or "[" in words or "<" in words) and (blank := find_blank(words)):
            return [(RowCode.OPEN_BLANK, text("data.row.open_blank", blank=blank))]
    return []


def note_nothing(conversation: Conversation) -> tuple[Note, ...]:
    """Return no notes, for formats without turns."""
    return ()
