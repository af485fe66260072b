"""Numbers as people write them in a field (decimal comma, exponent, full-width digits), and how they are shown."""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from decimal import Decimal
from typing import Any

GAPS = re.compile(r"(?<=\d)[\s\u00a0\u202f'_]+(?=\d{3})")
"""Between groups of thousands."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([,.]\d{3})+", re.ASCII)
"""`0,500` is no group of thousands but a half."""


def show_number(value: float) -> str:
    """Return `value` as a person would write it: 0.0002, 16, 1e-8; read_number() gives the same value back."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    exact = Decimal(repr(value))
    if value and abs(value) < 1e-5:
        digits, _, exponent = f"{exact:e}".partition("e")
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        return f"{digits}e{int(exponent)}"
    words = f"{exact:f}"
    return words.rstrip("0").rstrip(".") if "." in words else words


def read_number(raw: Any, *, whole: bool) -> float | None:
    """Return the number that `raw` (a field's text, or a number) means; None where it is none at all.

    `1e-4`, `0,0001` and full-width digits are read. In a whole number `1,000` and `1.000` are a thousand. A number that
    is not whole comes back as a float, for the caller to refuse. The page's own script (field_badges.js) reads
    by the same rules.
    """
    if isinstance(raw, bool) or raw is None:
        return None
    if not isinstance(raw, (int, float)):
        raw = _parse(str(raw), whole)
        if raw is None:
            return None
    # NaN and infinity are not, nor is a whole number beyond all floats.
    if not abs(raw) <= sys.float_info.max:
        return None
    return int(raw) if whole and float(raw).is_integer() else raw


def _parse(words: str, whole: bool) -> float | None:
    plain = unicodedata.normalize("NFKC", words).strip().replace("\u2212", "-").replace("\u3002", ".")
    plain = GAPS.sub("", plain)
    if whole and THOUSANDS.fullmatch(plain):
        plain = re.sub("[,.]", "", plain)
    if "," in plain and "." in plain:  # the last of the two stands before the fraction
        other = "," if plain.rfind(".") > plain.rfind(",") else "."
        plain = plain.replace(other, "")
    plain = plain.replace(",", ".")
    if not NUMBER.fullmatch(plain):
        return None
    return int(plain) if plain.lstrip("+-").isdigit() and len(plain) < 20 else float(plain)
