"""Text of a dataset that shows exactly itself: escaped, what is invisible named, control tokens and spaces marked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from markupsafe import Markup

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that show nothing, or turn the text around them; tab and line break have marks of their own."""
SIGNS = (
    ("\t", '<i class="tab"></i>\t'),
    ("\n", '<i class="line"></i>\n'),
    ("\u00a0", '<i class="nbsp"></i>\u00a0'),
)
SPACES = re.compile(" {2,}|^ +| +$", re.MULTILINE)


def show_text(words: str, limit: int = 0) -> Markup:
    """Return `words` as HTML that shows exactly them; what is longer than `limit` (0: none) is counted."""
    rest = len(words) - limit if limit else 0
    shown = _show(words[:limit] if rest > 0 else words)
    return Markup(shown + (f'<i class="more">+{rest:,}</i>' if rest > 0 else ""))


def mark_text(words: str, specials: Iterable[str]) -> Markup:
    """Return `words` as HTML with the special tokens in it framed and white space visible."""
    found = [special for special in specials if special and special in words]
    if not found:
        return Markup(_mark_space(words))
    pattern = "|".join(re.escape(special) for special in sorted(found, key=len, reverse=True))
    pieces = re.split(f"({pattern})", words)
    return Markup(
        "".join(
            f'<code class="special">{_show(piece)}</code>' if i % 2 else _mark_space(piece)
            for i, piece in enumerate(pieces)
        )
    )


def _show(words: str) -> str:
    """Every character escaped or named; plain strings, as a text has thousands of pieces."""
    shown = HIDDEN.sub(lambda found: f"\0{ord(found[0]):04X}\1", words)
    return re.sub("\0([0-9A-F]{4,6})\1", r'<i class="code">\1</i>', escape(shown))


def _mark_space(words: str) -> str:
    out, last = [], 0
    for found in SPACES.finditer(words):
        out += [_show(words[last : found.start()]), '<i class="space"></i> ' * len(found[0])]
        last = found.end()
    shown = "".join([*out, _show(words[last:])])
    for character, mark in SIGNS:
        shown = shown.replace(character, mark)
    return shown
