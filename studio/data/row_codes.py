"""The row codes: what is checked in each row, what each says, and whether the row can still be used."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from studio.core.i18n import Text, text

Effect = Literal["refused", "noted", "filtered"]
"""refused: the row goes to quarantine; noted: it is used, and counted; filtered: a named rule left it out."""


class RowCode(StrEnum):
    """What is wrong with a row: its number, which files, quarantines and the command line show, and its effect."""

    effect: Effect

    def __new__(cls, number: str, effect: Effect) -> RowCode:
        """Return the code of a number such as "E101"."""
        code = str.__new__(cls, number)
        code._value_, code.effect = number, effect
        return code

    UNREADABLE = "E101", "refused"
    """Broken JSON, a cell too many, no object."""
    BAD_CHARACTERS = "E110", "refused"
    """Characters that are not in the file's encoding, lone surrogates, NUL."""
    KEY_TWICE = "E111", "refused"
    """One object has the same key twice."""
    WRONG_SHAPE = "E120", "refused"
    """A column or key is missing, or of the wrong kind."""
    NULL = "E121", "refused"
    EMPTY = "E122", "refused"
    UNANSWERED = "E123", "refused"
    """The text holds no answer to its question, and the row says so: nothing is broken."""
    NO_ANSWERS = "E124", "refused"
    """The list of what a text answers is empty, and nothing says why: where most are, the answers were lost."""
    UNKNOWN_ROLE = "E130", "refused"
    NO_ANSWER = "E131", "refused"
    ENDS_WITH_QUESTION = "E132", "noted"
    """The last turn is a question: used up to the last answer."""
    TWO_QUESTIONS = "E133", "noted"
    """Two questions in a row."""
    SYSTEM_NOT_FIRST = "E134", "noted"
    UNCLEAR_FLAG = "E135", "refused"
    """A flag that keeps an answer out of training is not clear."""
    OPEN_BLANK = "E136", "noted"
    """A template's blank was not filled in, as `[INSERT DATE]`."""
    BAD_TOOL_CALL = "E140", "refused"
    """A tool's result without its call, or arguments that are no object."""
    BAD_IMAGE = "E150", "refused"
    """Missing or not readable."""
    CUT = "E160", "noted"
    """Longer than the limit."""
    ANSWER_CUT = "E161", "noted"
    NOTHING_TO_LEARN = "E162", "filtered"
    """The prompt fills the whole limit."""
    SAME_ANSWERS = "E170", "refused"
    """Chosen equals rejected."""
    OTHER_QUESTIONS = "E171", "refused"
    """Chosen and rejected answer different questions."""
    UNDECIDED = "E172", "refused"
    """Neither of two answers is the better one: a tie, which is not broken."""
    CONTRADICTION = "E173", "noted"
    """Another row says the opposite of the same answers."""
    NEARLY_SAME = "E174", "noted"
    """Chosen and rejected hardly differ."""
    BAD_LABEL = "E180", "refused"
    """Neither yes nor no."""
    TEMPLATE = "E181", "refused"
    """The chat template refuses the row, or loses a turn, a tool call or the answer."""
    DUPLICATE = "E190", "noted"
    """Exact; dropped only when asked."""
    CONTROL_TOKENS = "E191", "refused"
    """Words of a person would become control tokens."""
    BEYOND_VOCABULARY = "E192", "refused"
    """A token id that the model does not have."""

    @property
    def heading(self) -> Text:
        """What it is about, in a few words."""
        return text(f"data.code.{self}")

    @property
    def fix(self) -> Text:
        """What to do about it."""
        return text(f"data.code.{self}.fix")


def find_code(number: str) -> RowCode | None:
    """Return the code of a number that a file of another version may hold; None for one that is not known."""
    return next((code for code in RowCode if code == number), None)
