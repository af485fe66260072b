"""Reads what a library's own sentence states: who wants what, and got what; what lacks, excludes, repeats or differs.

Libraries word such sentences alike, whoever wrote them. Of the 4,400 different messages that transformers, peft, trl,
datasets, accelerate, bitsandbytes, huggingface_hub, gradio and triton raise in the installed versions, these forms
read the share that `tests/machine/test_statements.py` holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.machine.failures.sentence_forms import FORMS

LONGEST_SLOT = 110
SENTENCES_READ = 4
SENTENCE_END = re.compile(r"(?<=[\w)\]`'\"][.!?;])\s+(?=[A-Z`'\"(])|\n\s*\n|\n(?=[A-Z])")
ARTICLE = re.compile(
    r"^(?:an?|the|any|some|your|this|that|its|of|both|either|to|that the) (?!\W)", re.IGNORECASE
)
EMPTY = frozenset(
    "it this that they them you we i there which what these those and but or if not be set in one value values "
    "sure".split()
)
UNSAID = re.compile(
    r"(?: (?:not|which|that|it|only|but|and|is|are)|,)$|^(?:if|when|you are|which|there|because|since) ",
    re.IGNORECASE,
)
"""What shows that a part was cut out of another sentence."""
CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
BACK = re.compile(
    r"^(?:This|It|That|Which) (?:is|are) (?:currently )?(?:not|n't) (?:yet |currently )?"
    r"(?:supported|allowed|possible|implemented)",
    re.IGNORECASE,
)
"""A sentence that refuses what the one before it says."""
BACK_BY = re.compile(
    r"^(?P<first>[A-Z][\w .-]{1,40}?) (?:does|do|can)(?: not|n't) (?:yet |currently )?"
    r"(?:support|allow|handle|accept|do) (?:this|that|it)\b",
)
"""The same, with who refuses."""
LISTS = re.compile(r" - (?:supported|available|possible|valid|expected|allowed)[ :]")
SIGNS = " \t.,:;!"
ENCLOSED = re.compile(r"(['\"])([^'\"]*)\1")
REASON = re.compile(
    r"\b(?:failed|failure|error|reason|because(?: of)?|due to): ?(?P<reason>[A-Z][^\n]{9,300})", re.IGNORECASE
)
"""What stands behind the colon is why; before it stands what did not work."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A relation (the end of `failure.states.RELATION`) and what the sentence says of its parts, in its own words."""

    relation: str
    parts: dict[str, str]

    def spoken(self) -> Text:
        """Return it in words; a part that may lack has a form of its own."""
        whole = all(part in self.parts for part in OPTIONAL.get(self.relation, ()))
        return text(f"failure.states.{self.relation}{'' if whole else '.bare'}", **self.parts)


OPTIONAL = {
    "refused": ("how",),
    "only": ("name",),
    "unknown": ("kind",),
    "absent": ("place",),
    "before": ("second",),
    "broken": ("how",),
    "differ": ("how",),
    "twice": ("how",),
    "failed": ("how",),
}
"""The parts without which a relation has another sentence."""


def read_statement(message: str) -> Statement | None:
    """Return what `message` states, by its first sentence that has a form; a reason that it quotes comes before."""
    reason = REASON.search(message[:1500])
    inner = read_statement(reason["reason"]) if reason else None
    if inner is not None:
        return inner
    before = ""
    for sentence in list(_sentences(message[:1500]))[:SENTENCES_READ]:
        referring = BACK_BY.match(sentence) if before else None
        if referring is not None:
            parts = {"first": referring["first"], "second": before[:LONGEST_SLOT].rstrip(SIGNS)}
            return Statement("does_not_take", parts)
        if before and BACK.match(sentence):
            return Statement("refused", {"name": before[:LONGEST_SLOT].rstrip(SIGNS)})
        for relation, form in FORMS:
            found = form.search(sentence)
            parts = _clean(found.groupdict()) if found else None
            if parts is not None:
                return Statement(relation, parts)
        before = sentence
    return None


def _sentences(message: str) -> Iterator[str]:
    for part in SENTENCE_END.split(message):
        sentence = LISTS.split(" ".join(part.split()))[0]
        if len(sentence) > 6:
            yield sentence


def _clean(groups: dict[str, str | None]) -> dict[str, str] | None:
    """Return the parts without articles and signs around them; None where one of them says nothing."""
    parts: dict[str, str] = {}
    for name, value in groups.items():
        if not value:
            continue
        value = CLASS.sub(r"\1", value).replace("`", "").strip(SIGNS)
        words = ARTICLE.sub("", value if "(" in value else value.strip("()")).strip(SIGNS)
        words = ENCLOSED.sub(r"\2", words) if ENCLOSED.fullmatch(words) else words
        if not words or words.lower() in EMPTY or UNSAID.search(words):
            return None
        parts[name] = words if len(words) <= LONGEST_SLOT else words[:LONGEST_SLOT].rsplit(" ", 1)[0] + " ..."
    return parts or None
