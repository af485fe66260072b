"""Which scripts the letters of a text belong to: a hint at its languages, without any model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

BLOCKS: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("Latin", ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF), (0xFF21, 0xFF5A))),
    ("Greek", ((0x370, 0x3FF), (0x1F00, 0x1FFF))),
    ("Cyrillic", ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F))),
    ("Armenian", ((0x531, 0x58F),)),
    ("Hebrew", ((0x591, 0x5F4),)),
    ("Arabic", ((0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC))),
    ("Devanagari", ((0x900, 0x97F),)),
    ("Bengali", ((0x980, 0x9FF),)),
    ("Gurmukhi", ((0xA00, 0xA7F),)),
    ("Gujarati", ((0xA80, 0xAFF),)),
    ("Oriya", ((0xB00, 0xB7F),)),
    ("Tamil", ((0xB80, 0xBFF),)),
    ("Telugu", ((0xC00, 0xC7F),)),
    ("Kannada", ((0xC80, 0xCFF),)),
    ("Malayalam", ((0xD00, 0xD7F),)),
    ("Sinhala", ((0xD80, 0xDFF),)),
    ("Thai", ((0xE00, 0xE7F),)),
    ("Lao", ((0xE80, 0xEFF),)),
    ("Tibetan", ((0xF00, 0xFFF),)),
    ("Myanmar", ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F))),
    ("Georgian", ((0x10A0, 0x10FF), (0x1C90, 0x1CBF))),
    ("Ethiopic", ((0x1200, 0x139F),)),
    ("Khmer", ((0x1780, 0x17FF), (0x19E0, 0x19FF))),
    ("Kana", ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F))),
    ("Hangul", ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF))),
    ("Han", ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))),
)
"""Script and its code points, first and last; from the Unicode character blocks."""
SCRIPTS = tuple(name for name, _ in BLOCKS)
UNSPACED = ("Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Kana", "Han")
"""Scripts that put no spaces between words."""
ASCII_LETTERS = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))


@cache
def script_table() -> np.ndarray:
    """Return uint8 [0x110000]: 1 + the script's number in SCRIPTS for each code point, 0 for everything else."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for number, (_, ranges) in enumerate(BLOCKS, start=1):
        for first, last in ranges:
            table[first : last + 1] = number
    table[[0xD7, 0xF7]] = 0  # multiplication and division signs, amid the Latin letters
    table[0xFF3B:0xFF41] = 0
    return table


@cache
def unspaced_table() -> np.ndarray:
    """Return bool [0x110000]: whether a code point belongs to a script without spaces."""
    numbers = [SCRIPTS.index(name) + 1 for name in UNSPACED]
    return np.isin(script_table(), numbers)


def read_code_points(words: str) -> np.ndarray:
    """Return uint32 [characters]."""
    return np.frombuffer(words.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def count_scripts(texts: Iterable[str]) -> np.ndarray:
    """Return int64 [len(SCRIPTS)]: how many letters of each script `texts` hold."""
    counts = np.zeros(len(SCRIPTS) + 1, dtype=np.int64)
    other: list[str] = []
    ascii_texts: list[str] = []
    for words in texts:
        (ascii_texts if words.isascii() else other).append(words)
    plain = "".join(ascii_texts).encode("ascii")
    counts[1] = len(plain) - len(plain.translate(None, ASCII_LETTERS))
    if other:
        counts += np.bincount(script_table()[read_code_points("".join(other))], minlength=len(SCRIPTS) + 1)
    return counts[1:]
