"""The answer's number is the expected one: the last number, that after ####, or that in \\boxed{}."""

from __future__ import annotations

import math
import re
import unicodedata

from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings, mark, most

GROUPED = r"\d{1,3}(?:(?P<sep>[,.'\u2019])\d{3})(?:(?P=sep)\d{3})*(?!\d)(?:(?!(?P=sep))[.,]\d+)?"
NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-+\u2212]\s?)?[$\u20ac\u00a3\u00a5]?"
    rf"(?<![\d.])(?P<value>{GROUPED}|\d+[.,]\d+|\d+|\.\d+)(?P<power>[eE][-+]?\d{{1,3}}\b)?"
    r"(?:\s?/\s?(?P<below>\d+(?:\.\d+)?))?\s?(?P<percent>%)?"
)
FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.]+)\s*\}\s*\{\s*([\d.]+)\s*\}")
NARROW = str.maketrans({"\u00a0": "'", "\u202f": "'"})
"""Blanks that a line is not broken at stand between groups of digits; normalising would make them plain ones."""


def read_number(words: str) -> tuple[float, bool] | None:
    """Return the number that an answer comes to and whether it is in percent, None where it holds none."""
    words = unicodedata.normalize("NFKC", words.translate(NARROW))
    region = words.rsplit("####", 1)[1].strip().split("\n")[0] if "####" in words else _read_boxed(words)
    for part in (region, words):
        if part is not None:
            part = FRACTION.sub(r"\1/\2", part).replace("\\%", "%")
            found = [value for one in NUMBER.finditer(part) if (value := _value(one)) is not None]
            if found:
                return found[-1]
    return None


def _read_boxed(words: str) -> str | None:
    """Return what the last \\boxed{...} holds."""
    start = words.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for place in range(begin, len(words)):
        depth += {"{": 1, "}": -1}.get(words[place], 0)
        if not depth:
            return words[begin:place]
    return words[begin:]


def _value(found: re.Match[str]) -> tuple[float, bool] | None:
    value = float(_write_plainly(found["value"], found["sep"]) + (found["power"] or ""))
    if found["sign"] and found["sign"][0] != "+":
        value = -value
    if found["below"]:
        below = float(found["below"])
        value = value / below if below else math.nan
    return (value, bool(found["percent"])) if math.isfinite(value) else None


def _write_plainly(written: str, sign: str | None) -> str:
    """Return digits with a point at most; `sign` parts their groups, None where there are none.

    1,234.5 and 1.234,5 and 1'234.5 are one number; 1,234 is more than a thousand, 1.234 and 3,5 and 0,125 are not.
    """
    signs = re.findall(r"\D", written)
    if sign is None or (signs == [sign] and (sign == "." or written.startswith("0"))):
        return written.replace(",", ".")
    if signs[-1] == sign:
        return "".join(re.findall(r"\d", written))
    whole, _, rest = written.rpartition(signs[-1])
    return "".join(re.findall(r"\d", whole)) + "." + rest


def is_number(given: str, wanted: str, tolerance: float) -> bool | None:
    """Return whether both come to the same number, None where none is wanted; 50 % is 0.5 and is 50."""
    right, found = read_number(wanted), read_number(given)
    if right is None:
        return None
    if found is None:
        return False
    allowed = (
        {found[0]} if found[1] == right[1] else {found[0], found[0] / 100 if found[1] else found[0] * 100}
    )
    return any(math.isclose(one, right[0], rel_tol=tolerance, abs_tol=tolerance) for one in allowed)


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    right = is_number(row.given, row.expected, settings.tolerance)
    return None if right is None else mark(right)


def _comes_to_one(row: AnsweredRow) -> bool:
    """Whether the given answer is a number, with a unit at most, or ends in one behind ####."""
    found = NUMBER.search(row.expected)
    if found is None or "####" in row.expected:
        return found is not None
    before, behind = row.expected[: found.start()], row.expected[found.end() :]
    return not re.search(r"\w", before) and len(behind.split()) <= 1


METRIC = AnswerMetric(name="number", count=_count, suits=lambda rows: most(rows, _comes_to_one))
