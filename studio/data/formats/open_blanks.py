"""Blanks that a template left open in a text: `{name}`, `[INSERT DATE]`, `[Your Name]`, `<company name>`."""

from __future__ import annotations

import re

BRACED = re.compile(r"(?<![\w$\\^}{%#/])(\{\{? ?[^\W\d_][\w -]{1,38}\w ?\}?\})(?![\w{}/])")
BRACKETED = re.compile(
    r"(?<![\w\]\\!])(\[(?:(?:insert|enter|your|fill in|add|please|specify|e\.g\.)\b[^\]\n]{2,60}"
    r"|[A-Z]{2,}(?:[ -][A-Z]{2,}){1,5}|(?:[A-Z]{2,}_)+(?:NAME|DATE|NUMBER|ADDRESS|EMAIL|TITLE|LINK|URL|HERE))\])"
    r"(?![(\[:])",
    re.I,
)
UPPER = re.compile(r"\[[A-Z _/-]+\]")
"""A code with underscores is a source that is cited, as `[FAQ_CLAIM]`, unless it ends in what a form asks for."""
ANGLED = re.compile(r"(?<![\w<])(<(?:insert|your|enter|[a-z]{3,})(?: [a-z]{2,}){1,4}>)")
CODE = re.compile(r"```|\bf[\"']|\.format\(|=>|[;{]\s*\n|\\\w+\{|</\w|\bdef \w+\(|\bimport \w|%[sd]\b|`")
"""Signs of code, in which braces and brackets are no blanks."""
CALLED = re.compile(r"insert|enter|your|fill|add|please|specify|e\.g", re.I)
LOOKED_AT_CHARACTERS = 20_000


def find_blank(words: str) -> str:
    """Return the first blank that a text leaves open; "" for none. In what looks like code there are none."""
    words = words[:LOOKED_AT_CHARACTERS]
    found = _find_braced(words) or _find_bracketed(words) or _find_angled(words)
    return "" if found and CODE.search(words) else found


def _find_braced(words: str) -> str:
    """Return a name in braces, where all braces of the text are around names."""
    found = BRACED.findall(words) if "{" in words else []
    return found[0] if found and sum(one.count("{") for one in found) == words.count("{") else ""


def _find_bracketed(words: str) -> str:
    """Return what is to be put in, in brackets: it says so, or stands in several words of capital letters."""
    for found in BRACKETED.findall(words) if "[" in words else ():
        if UPPER.fullmatch(found) or CALLED.match(found[1:]):
            return found
    return ""


def _find_angled(words: str) -> str:
    found = ANGLED.search(words) if "<" in words else None
    return found[1] if found else ""
