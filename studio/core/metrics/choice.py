"""The answer chooses the expected option, by its letter or by its words: options stand in the question."""

from __future__ import annotations

import re

from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings, mark, most
from studio.core.metrics.normalised import normalise

OPTION = re.compile(r"^\s*[(\[]?([A-Z])\s?[).:\]]\s*(\S.*)$", re.M)
ALONE = re.compile(r"\W*([A-Za-z])\W*")
FIRST = re.compile(r"\s*[(\[*]*([A-Za-z])\s?(?:[).:\]]|\*\*)")
SAID = re.compile(
    r"(?:answer|option|choice|choose|correct)[^\n.]{0,20}?(?:\bis|[:=])?\s*[(\[*]*\b([A-Z])\b(?!')|(?:答案|选项|选择|选)[^\n。]{0,6}?([A-Z])",
    re.I,
)
BOXED = re.compile(r"\\boxed\{\s*\\?(?:text\{)?\s*\(?([A-Za-z])\)?\s*\}")
BRACKETED = re.compile(r"[(\[]([A-Z])[)\]]")


def read_options(prompt: str) -> dict[str, str]:
    """Return letter -> words of the options that stand in a question, {} where there are fewer than two."""
    found = {letter: words.strip() for letter, words in OPTION.findall(prompt)}
    letters = sorted(found)
    whole = len(letters) > 1 and letters == [chr(ord("A") + i) for i in range(len(letters))]
    return found if whole else {}


def read_choice_letter(words: str, options: dict[str, str]) -> str | None:
    """Return the letter that an answer chooses, None where that is not clear."""
    said = normalise(words)
    by_words = [letter for letter, option in options.items() if normalise(option) == said]
    if len(by_words) == 1:
        return by_words[0]
    if found := ALONE.fullmatch(words):
        return found[1].upper()
    for pattern in (BOXED, SAID):
        if found := list(pattern.finditer(words)):
            letter = next(group for group in found[-1].groups() if group).upper()
            if not options or letter in options:
                return letter
    if found := FIRST.match(words):
        return found[1].upper()
    if len(found := set(BRACKETED.findall(words))) == 1:
        return found.pop()
    held = [letter for letter, option in options.items() if _holds(said, normalise(option))]
    return held[0] if len(held) == 1 else None


def _holds(said: str, option: str) -> bool:
    return bool(option) and re.search(rf"(?<!\w){re.escape(option)}(?!\w)", said) is not None


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    options = read_options(row.prompt)
    wanted = read_choice_letter(row.expected, options)
    if wanted is None or (options and wanted not in options):
        return None
    return mark(read_choice_letter(row.given, options) == wanted)


METRIC = AnswerMetric(
    name="choice", count=_count, suits=lambda rows: most(rows, lambda row: bool(read_options(row.prompt)))
)
