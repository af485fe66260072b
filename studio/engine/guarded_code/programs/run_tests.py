"""The share of a row's tests that the code of an answer passes; in a child of its own, which ends after each row."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.S | re.I)
CHECKS = re.compile(r"^def check\(", re.M)
"""HumanEval's tests: a function check(candidate)."""


def judge(completions: Sequence[str], tests: Sequence[Any], entry_points: Sequence[str]) -> list[float]:
    """Return for each answer the share of its tests that pass; 0 where its code does not run."""
    return [
        judge_code(take_code(words), given, entry)
        for words, given, entry in zip(completions, tests, entry_points, strict=True)
    ]


def take_code(answer: str) -> str:
    """Return the code of an answer: its fenced blocks, or all of it where it has none."""
    return "\n\n".join(FENCED.findall(answer)) or answer


def judge_code(code: str, tests: Any, entry_point: str) -> float:
    """Return the share of `tests` that `code` passes: asserts one by one, a check(), or inputs with their outputs."""
    if isinstance(tests, dict) and "inputs" in tests:
        pairs = list(zip(tests["inputs"], tests.get("outputs", ()), strict=False))
        passed = [_prints(code, given, wanted) for given, wanted in pairs]
        return sum(passed) / len(passed) if passed else 0.0
    names: dict[str, Any] = {"__name__": "answer"}
    if not _passes(code, names):
        return 0.0
    listed = [tests] if isinstance(tests, str) else list(tests)
    if len(listed) == 1 and CHECKS.search(listed[0]) and entry_point:
        listed = [f"{listed[0]}\ncheck({entry_point})"]
    passed = [_passes(str(one), dict(names)) for one in listed]
    return sum(passed) / len(passed) if passed else 0.0


def _passes(code: str, names: dict[str, Any]) -> bool:
    try:
        exec(compile(code, "answer", "exec"), names)
    except (Exception, SystemExit):
        return False
    return True


def _prints(code: str, given: str, wanted: str) -> bool:
    printed, before = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(str(given))
    try:
        with contextlib.redirect_stdout(printed):
            right = _passes(code, {"__name__": "__main__"})
    finally:
        sys.stdin = before
    return right and printed.getvalue().split() == str(wanted).split()
