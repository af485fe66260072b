"""The words by which a failure is known: patterns that are compiled only for a text which holds their plain part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

# What stands before a name that cannot be imported, is no attribute or is not defined, and the name's own beginning.
NAMED = re.compile(r"(?:cannot import name|has no attribute|Error: name) '\w*\Z")
NEAR = 100


class Signature:
    """Any of several patterns, matched without case.

    A log may have megabytes and the catalogue has some 400 patterns: looking for each one's longest plain part first,
    with str's own search, is ten times faster than the patterns alone, and most are never compiled.
    """

    def __init__(self, *patterns: str) -> None:
        self.patterns = tuple(part for pattern in patterns for part in alternatives(pattern))
        self._needed = tuple(
            tuple(word.lower() for word in needed_words(pattern)) for pattern in self.patterns
        )

    def search(self, words: str, lower: str = "") -> re.Match[str] | None:
        """Return the first match of the first pattern that has one; `lower` is `words` in small letters."""
        return next(self.finditer(words, lower), None)

    def finditer(self, words: str, lower: str = "") -> Iterator[re.Match[str]]:
        """Yield every match, pattern by pattern."""
        lower = lower or words.lower()
        for pattern, needed in zip(self.patterns, self._needed, strict=True):
            if any(word in lower for word in needed):
                yield from (
                    match
                    for match in _compile(pattern).finditer(words)
                    if not _only_named(words, match.start())
                )


def _only_named(words: str, start: int) -> bool:
    """Tell whether a match begins in a name that is said to be missing: an error of that name was not raised."""
    return NAMED.search(words, max(0, start - NEAR), start) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def alternatives(pattern: str) -> list[str]:
    """Return the parts of `pattern` between bars that stand in no group: each has a plain part of its own."""
    parts, depth, position = [""], 0, 0
    while position < len(pattern):
        sign = pattern[position]
        length = 2 if sign == "\\" else pattern.index("]", position + 2) + 1 - position if sign == "[" else 1
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += pattern[position : position + length]
        position += length
    return parts


def needed_words(pattern: str) -> tuple[str, ...]:
    """Return plain words of which every match of `pattern` holds one: its plain part, or a part of each in a group."""
    best: tuple[str, ...] = (plain_part(pattern),)
    for group in groups(pattern):
        words = tuple(word for part in alternatives(group) for word in needed_words(part))
        if min(map(len, words)) > min(map(len, best)):
            best = words
    return best


def groups(pattern: str) -> Iterator[str]:
    """Yield what stands in the groups of `pattern` that every match goes through, without those inside them."""
    depth, position, start = 0, 0, 0
    while position < len(pattern):
        sign = pattern[position]
        if sign == "(" and not depth:
            start = position
        depth += (sign == "(") - (sign == ")")
        if sign == ")" and not depth:
            inside = re.fullmatch(r"\(\?(?::|P<\w+>)([\s\S]*)\)", pattern[start : position + 1])
            if inside and pattern[position + 1 : position + 2] not in ("?", "*", "{"):
                yield inside.group(1)
        position += (
            2 if sign == "\\" else pattern.index("]", position + 2) + 1 - position if sign == "[" else 1
        )


def plain_part(pattern: str) -> str:
    """Return the longest run of characters that every match of `pattern` must hold; "" where there is none.

    Groups and classes are left out as a whole, and what is optional too.
    """
    runs, depth, position = [""], 0, 0
    while position < len(pattern):
        sign = pattern[position]
        position += 1
        if sign == "\\":
            sign = pattern[position]
            position += 1
            # What is written by its number in Unicode.
            position += 4 if sign == "u" else 0
            if not depth:
                if sign.isalnum():
                    runs.append("")
                else:
                    runs[-1] += sign
        elif sign == "[":
            position = pattern.index("]", position + 1) + 1
            runs.append("")
        elif sign in "()":
            depth += 1 if sign == "(" else -1
            runs.append("")
        elif depth:
            continue
        elif sign == "|":
            return ""
        elif sign in "?*{":
            runs[-1] = runs[-1][:-1]
            position = pattern.index("}", position) + 1 if sign == "{" else position
            runs.append("")
        elif sign in ".^$+":
            runs.append("")
        else:
            runs[-1] += sign
    return max(runs, key=len)
