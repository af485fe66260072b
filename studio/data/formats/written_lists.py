"""Lists and objects that a table holds as text, in Python's notation or as numpy prints them: read as what they are."""

from __future__ import annotations

import ast
import io
import re
import tokenize

ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=\w+)?\)", re.S)
WRITTEN = ("{'", "[{'", "['", '["', "array([")
"""How they begin."""
WRITTEN_CHARACTERS = 100_000


def open_written(cell: str) -> list[object] | dict[str, object] | None:
    """Return the list or object that pandas wrote as text, with its arrays; None for any other text.

    numpy prints no commas: there, Python would read two texts behind each other as one.
    """
    words = cell.strip()
    if not words.startswith(WRITTEN) or len(words) > WRITTEN_CHARACTERS:
        return None
    try:
        found = ast.literal_eval(_put_commas(ARRAY.sub(r"\1", words)))
    except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
        return None
    return found if isinstance(found, (list, dict)) else None


def _put_commas(words: str) -> str:
    """Return Python's notation with a comma between texts that stand behind each other."""
    lines, places, last = words.splitlines(keepends=True), [], False
    for token in tokenize.generate_tokens(io.StringIO(words).readline):
        if token.type == tokenize.STRING and last:
            places.append(token.start)
        if token.type not in (tokenize.NL, tokenize.NEWLINE):
            last = token.type == tokenize.STRING
    for line, column in reversed(places):
        lines[line - 1] = f"{lines[line - 1][:column]},{lines[line - 1][column:]}"
    return "".join(lines)
