"""Cells of a CSV file that a spreadsheet opens: none is a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a cell must not begin with: spreadsheets compute it (OWASP, CSV injection)."""


def protect(words: str) -> str:
    """Return `words` with a quote in front where a spreadsheet would compute them."""
    # Not only the first character: spreadsheets pass over white space before it.
    return f"'{words}" if words.startswith(FORMULA) or words.lstrip().startswith(FORMULA) else words
