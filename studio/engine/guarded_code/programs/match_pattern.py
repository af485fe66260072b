"""Whether answers hold a pattern; in a child, since a pattern such as (a+)+$ may take longer than anybody lives."""

from __future__ import annotations

import re
from collections.abc import Sequence


def match(completions: Sequence[str], patterns: Sequence[str], whole: Sequence[bool]) -> list[float]:
    """Return 1 where `completions[i]` holds `patterns[i]`, with `whole[i]` where it is nothing else; else 0."""
    return [
        float((re.fullmatch if all_of_it else re.search)(pattern, words, re.DOTALL) is not None)
        for words, pattern, all_of_it in zip(completions, patterns, whole, strict=True)
    ]
