"""The words by which a failure is known: patterns that are compiled only for a text which holds their plain part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache


class Signature:
    """Any of several patterns, matched without case.

    A log may have megabytes and the catalogue has some 400 patterns: looking for each one's longest plain part first,
    with str's own search, is ten times faster than the patterns alone, and most are never compiled.
    """

    def __init__(self, *patterns: str) -> None:
        self.patterns = patterns
        self._plain = tuple(plain_part(pattern).lower() for pattern in patterns)

    def search(self, words: str) -> re.Match[str] | None:
        """Return the first match of the first pattern that has one."""
        return next(self.finditer(words), None)

    def finditer(self, words: str) -> Iterator[re.Match[str]]:
        """Yield every match, pattern by pattern."""
        lower = words.lower()
        for pattern, plain in zip(self.patterns, self._plain, strict=True):
            if plain in lower:
                yield from _compile(pattern).finditer(words)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


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
