"""Keys, tokens and personal numbers that stand in a data set by accident: found by their shape, never shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


def _holds_valid_card(words: str) -> bool:
    """Return whether the digits of `words` pass the check of Luhn (ISO/IEC 7812-1) and are not all alike."""
    digits = [int(sign) for sign in words if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


@dataclass(frozen=True, slots=True)
class Secret:
    """One kind of thing that should not be in a data set."""

    name: str
    """Its text is data.secret.NAME."""
    signs: tuple[str, ...]
    """Literals of which one stands in every match; none where it is a number."""
    pattern: re.Pattern[str]
    before: int = 0
    """Characters of a match that may stand before its sign."""
    behind: int = 256
    """Characters from its sign on that are read."""
    is_key: bool = True
    """False for what belongs to a person, and is only counted."""
    is_one: Callable[[str], bool] = bool
    """A last check of the words that were found."""


SECRETS: tuple[Secret, ...] = (
    Secret("aws", ("AKIA", "ASIA"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    Secret(
        "github",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22})"),
    ),
    Secret("anthropic", ("sk-ant-",), re.compile(r"\bsk-ant-[A-Za-z0-9_-]{20}")),
    Secret("openai", ("sk-",), re.compile(r"\bsk-(?!ant-)(?:proj-|svcacct-|admin-)?[A-Za-z0-9_]{20}")),
    Secret("slack", ("xox",), re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10}")),
    Secret("google", ("AIza",), re.compile(r"\bAIza[0-9A-Za-z_-]{35}")),
    Secret("hugging_face", ("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{34}")),
    Secret(
        "private_key",
        ("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----"),
        re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
        before=64,
    ),
    Secret(
        "jwt",
        (".eyJ",),
        re.compile(r"\beyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8}"),
        before=2004,
        behind=8016,
    ),
    Secret(
        "email",
        ("@",),
        re.compile(
            r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,4}\.[A-Za-z]{2,24}\b"
        ),
        before=64,
        behind=360,
        is_key=False,
    ),
    Secret(
        "phone",
        (),
        re.compile(
            r"[+(\d](?<![\w+-].)(?:"
            r"(?<=\+)[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){5,12}(?!\w)"
            r"|(?:(?<=\()\d{3}\) ?|(?<=\d)\d{2}[ .-])\d{3}[ .-]\d{4}(?![\w-]))"
        ),
        is_key=False,
    ),
    Secret(
        "card",
        (),
        re.compile(r"\d(?<![\w.-].)(?:[ -]?\d){12,18}(?![\w-])"),
        is_key=False,
        is_one=_holds_valid_card,
    ),
)
"""Adding a kind is one entry, and its text; the order is that of the bits in `Traits.flags`."""
KEY_BLOCKS = 3
"""No key is shorter than 15 signs without a break (Slack's are the shortest): 3 whole words of 4 bytes in any case."""
NUMBER_BLOCKS = 2
"""Telephone and card numbers are looked for that take 11 signs or more, spaces, dashes, dots and brackets included."""
NUMBER_DIGITS = b"0" * 7
KEY_SHAPE = bytes(
    0x30 if sign < 128 and (chr(sign).isalnum() or chr(sign) in "_-") else 0x20 for sign in range(256)
)
NUMBER_SHAPE = bytes(0x30 if chr(sign) in "0123456789 .-()+" else 0x78 for sign in range(256))
DIGIT_SHAPE = bytes(0x30 if 0x30 <= sign <= 0x39 else 0x78 for sign in range(256))
NUMBER_BREAKS = b" .-()"
SECRET_BITS = {secret.name: 1 << bit for bit, secret in enumerate(SECRETS)}
NUMBERS = tuple(secret for secret in SECRETS if not secret.signs)
MAILS = tuple(secret for secret in SECRETS if secret.signs == ("@",))
KEY_STARTS = tuple(sign.lstrip(".") for secret in SECRETS for sign in secret.signs if secret.is_key)
STRETCH = re.compile(r"[A-Za-z0-9_-]{15,}")
KEY_BITS = sum(SECRET_BITS[secret.name] for secret in SECRETS if secret.is_key)


def find_secrets(texts: Sequence[str]) -> list[tuple[int, str]]:
    """Return (number of the text, name of the kind) for each kind of secret in each of `texts`, in order, once each.

    A few hundred texts at a time are fastest (1 us for 700 bytes without a secret): what no secret can do without is
    looked for in all of them at once, and only the texts that have it are read with the patterns.
    """
    joined = "\n".join(texts).encode("ascii", "replace")
    starts = np.cumsum([0, *(len(words) + 1 for words in texts)])
    keys = _find_stretches(joined.translate(KEY_SHAPE), KEY_BLOCKS)
    numbers = _find_stretches(joined.translate(NUMBER_SHAPE), NUMBER_BLOCKS)
    places = [*keys, *numbers, *_find_all(joined, b"PRIVATE KEY"), *_find_all(joined, b"@")]
    found = []
    # Not np.unique, whose first call imports numpy.ma: 25 ms.
    for number in sorted({*(np.searchsorted(starts, places, side="right") - 1).tolist()}):
        words = texts[number]
        raw = joined[starts[number] : starts[number + 1]].translate(DIGIT_SHAPE, NUMBER_BREAKS)
        kinds = NUMBERS if NUMBER_DIGITS in raw else ()
        if _may_hold_key(words):
            kinds = SECRETS
        elif "@" in words:
            kinds = (*kinds, *MAILS)
        found += [(number, secret.name) for secret in kinds if any(map(secret.is_one, _match(secret, words)))]
    return found


def _may_hold_key(words: str) -> bool:
    starts = (stretch.lstrip("-") for stretch in STRETCH.findall(words))
    return any(stretch.startswith(KEY_STARTS) for stretch in starts) or "PRIVATE KEY" in words


def _match(secret: Secret, words: str) -> Iterator[str]:
    """Yield what the pattern finds, read only around its signs where it has some."""
    windows = _find_windows(secret, words) if secret.signs else ((0, len(words)),)
    for start, end in windows:
        # One character more, for the patterns look at what stands before and behind.
        for match in secret.pattern.finditer(words, max(start - 1, 0), end + 1):
            yield match.group()


def _find_windows(secret: Secret, words: str) -> Iterator[tuple[int, int]]:
    for sign in secret.signs:
        place = words.find(sign)
        while place >= 0:
            yield place - secret.before, place + secret.behind
            place = words.find(sign, place + len(sign))


def _find_stretches(shape: bytes, blocks: int) -> np.ndarray:
    """Return int64: bytes at which `blocks` aligned words of 4 bytes begin that hold nothing but 0x30."""
    whole = np.frombuffer(shape, dtype="<u4", count=len(shape) // 4) == 0x30303030
    several = whole
    for more in range(1, blocks):
        several = several[:-1] & whole[more:]
    return np.flatnonzero(several) * 4


def _find_all(joined: bytes, sign: bytes) -> Iterator[int]:
    """Yield each byte at which `sign` begins."""
    place = joined.find(sign)
    while place >= 0:
        yield place
        place = joined.find(sign, place + 1)
