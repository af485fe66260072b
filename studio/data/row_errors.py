"""The row checks by number: what each says, and whether the row can still be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from studio.core.i18n import Text, text

Effect = Literal["refused", "noted", "filtered"]
"""refused: the row goes to quarantine; noted: it is used, and counted; filtered: a named rule left it out."""


@dataclass(frozen=True, slots=True)
class Code:
    """One row check."""

    number: str
    effect: Effect

    @property
    def title(self) -> Text:
        """What it is about, in a few words."""
        return text(f"data.code.{self.number}")

    @property
    def fix(self) -> Text:
        """What to do about it."""
        return text(f"data.code.{self.number}.fix")


CODES: Mapping[str, Code] = {
    number: Code(number, effect)
    for number, effect in (
        ("E101", "refused"),  # cannot be read: broken JSON, a cell too many, no object
        ("E110", "refused"),  # characters that are not in the file's encoding, lone surrogates, NUL
        ("E111", "refused"),  # one object has the same key twice
        ("E120", "refused"),  # a column or key is missing, or of the wrong kind
        ("E121", "refused"),  # null
        ("E122", "refused"),  # empty
        ("E130", "refused"),  # role unknown
        ("E131", "refused"),  # no answer
        ("E132", "noted"),  # the last turn is a question: used up to the last answer
        ("E133", "noted"),  # two questions in a row
        ("E134", "noted"),  # the system message is not the first
        ("E135", "refused"),  # a flag that keeps an answer out of training is not clear
        ("E140", "refused"),  # tool call without a result's call, or arguments that are no object
        ("E150", "refused"),  # image missing or not readable
        ("E160", "noted"),  # longer than the limit: cut
        ("E161", "noted"),  # the answer itself is cut
        ("E162", "filtered"),  # the prompt fills the whole limit: nothing to learn is left
        ("E170", "refused"),  # chosen equals rejected
        ("E171", "refused"),  # chosen and rejected answer different questions
        ("E180", "refused"),  # label is not yes or no
        ("E181", "refused"),  # the chat template refuses the row, or loses a turn, a tool call or the answer
        ("E190", "noted"),  # exact duplicate (dropped only when asked)
        ("E191", "refused"),  # words of a person would become control tokens
        ("E192", "refused"),  # a token id beyond the model's vocabulary
    )
}
