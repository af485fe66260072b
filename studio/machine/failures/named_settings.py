"""Finds the settings, arguments and options that a message names, so that an answer's first line can name them."""

from __future__ import annotations

import re

from studio.core.i18n import Text, text

CODE = re.compile(r"`(?P<name>--?[A-Za-z][\w-]{1,40}|[A-Za-z_][\w.]{0,60})(?:\(\)|=[^`\s]{1,40})?`")
OPTION = re.compile(r"(?<![\w/\\.-])(?P<name>--[a-z][\w-]{2,40})")
SNAKE = re.compile(
    r"(?<![\w/\\.'\"`<|-])(?P<name>[a-z][a-z0-9]{0,20}(?:_[a-z0-9]{1,20}){1,6})(?!\.?\w|[/\\(|])"
)
QUOTED = re.compile(r"(?<!\w)['\"](?P<name>[A-Za-z_][\w-]{2,40})['\"]")
CAMEL = re.compile(r"(?<![\w.`'\"/\\])(?P<name>[A-Z][a-z0-9]+(?:[A-Z]{1,4}[a-z0-9]+){1,6})(?![\w/\\(])")
"""How messages write a name, the surest first."""
NO_NAMES = re.compile(
    r"(?:None|True|False|int|str|float|bool|list|dict|tuple|NoneType|self|cuda|cpu|and|or|the|not|this|that)$|"
    r"\w*(?:Error|Exception|Warning)$",
)
JOINED = re.compile(
    r"\b(?:with|and|together|both|when|while|if|unless|between|but|than|match|equal|without|or|for)\b|!=|=="
)
ADVISED = re.compile(r"\b(?:use|using|instead|please|try|install|upgrade|e\.g|such as)\b", re.IGNORECASE)
"""What stands before a name that is offered in place of the refused one."""


def names_in(sentence: str, *, wanted: bool = False) -> tuple[str, ...]:
    """Return the one or two names that `sentence` is about, in its order.

    A name that it recommends is none of them, but for a sentence that says what is `wanted`.
    """
    places: dict[str, int] = {}
    for pattern in (CODE, OPTION, SNAKE, QUOTED, CAMEL):
        for match in pattern.finditer(sentence):
            if not NO_NAMES.match(match["name"]):
                places.setdefault(match["name"], match.start("name"))
        if len(places) > 1:
            break
    found = sorted((place, name) for name, place in places.items())
    if not found:
        return ()
    (place, first), rest = found[0], found[1:2]
    between = sentence[place + len(first) : rest[0][0]] if rest else ""
    before = sentence[:place]
    if wanted:
        return (
            (first, rest[0][1])
            if re.fullmatch(r"\W{0,3}(?:\w+ ){0,2}or (?:\w+ ){0,2}\W{0,3}", between)
            else (first,)
        )
    joined = JOINED.search(between) or JOINED.search(before.rsplit(". ", 1)[-1])
    if rest and joined and not ADVISED.search(between):
        return first, rest[0][1]
    return () if ADVISED.search(before) else (first,)


def headline(id: str, sentence: str) -> Text:
    """Return the first line of the failure `id` with the names of `sentence`: failure.ID.two, .one or .none."""
    names = names_in(sentence, wanted=id == "told_lacking")
    if len(names) == 2:
        return text(f"failure.{id}.two", first=names[0], second=names[1])
    return text(f"failure.{id}.one", first=names[0]) if names else text(f"failure.{id}.none")
