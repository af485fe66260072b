"""Pass phrases that nobody can guess and everybody can type: eight words that can be spoken, 128 bits of chance."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

WORDS = 8
CONSONANTS = "bdfghjklmnprstvz"
VOWELS = "aiou"
"""A word is consonant, vowel, consonant, vowel, consonant: 4 + 2 + 4 + 2 + 4 = 16 bits (proquints, arXiv:0901.4016)."""


def make_phrase() -> str:
    """Return a new pass phrase, such as `lusab-babad-gutih-tugad-mudof-sakat-hibun-zipor`."""
    return "-".join(_word(secrets.randbits(16)) for _ in range(WORDS))


def hash_phrase(words: str, salt: str) -> str:
    """Return what is kept of a phrase or a cookie's token.

    One SHA-256 is enough: it hides 128 random bits, not a word that a person chose. Capitals, blanks and hyphens do
    not count, because phones put them where they like.
    """
    letters = re.sub(r"[^a-z0-9]", "", words.lower())
    return hashlib.sha256(f"{salt}:{letters}".encode()).hexdigest()


def matches(words: str, salt: str, kept: str) -> bool:
    """Return whether `words` is what `kept` was made of; takes as long for any wrong one."""
    return hmac.compare_digest(hash_phrase(words, salt), kept)


def _word(bits: int) -> str:
    letters = []
    for place in range(5):
        table = VOWELS if place % 2 else CONSONANTS
        bits, digit = divmod(bits, len(table))
        letters.append(table[digit])
    return "".join(letters)
