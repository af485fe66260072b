"""Takes names, homes and secrets out of what a person copies or exports; what is evidence stays readable."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

USER = "<user>"
SECRET = "<secret>"
WINDOWS_HOME = re.compile(
    r"(?P<root>(?:[A-Za-z]:|/mnt/[a-z]|/[a-z])[\\/]+(?:Users|Documents and Settings)[\\/]+)"
    # A name may hold blanks where another folder follows.
    r"(?P<name>[^\\/:*?\"<>|\r\n]+(?=[\\/])|[^\\/:*?\"'<>|\s,;)\]]+)",
    re.IGNORECASE,
)
UNIX_HOME = re.compile(r"(?P<root>(?<![\\/])[\\/]+(?:home|Users)[\\/]+)(?P<name>[^\\/\s:'\"<>,;)\]]+)")
# Lengths are bounded where a match may begin at every letter: a row of 20,000 slashes in a dataset took 13 s.
SECRETS = (
    (re.compile(r"://[^/\s'\"]+@"), f"://{SECRET}@"),  # up to the last @: passwords hold some
    (re.compile(r"://[^/\s:@'\"]+:[^\s@'\"]{0,300}@"), f"://{SECRET}@"),  # and slashes
    (
        re.compile(r"(?<![\w/])[^\s/:@'\"=]{1,100}:[^\s/:@'\"]{1,300}@(?=[\w.-]+:\d)"),
        f"{SECRET}@",
    ),  # a proxy without http://
    (
        re.compile(r"([?&][\w-]*(?:token|key|secret|password|signature)=)[^\s&'\"<]+", re.IGNORECASE),
        rf"\1{SECRET}",
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {SECRET}"),
    (
        re.compile(
            r"\b((?:[A-Z0-9]+_)*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY))(\s*[=:]\s*)[^\s'\"<]+"
        ),
        rf"\1\2{SECRET}",
    ),
    (
        re.compile(
            r"(?<![A-Za-z])((?:[A-Za-z]{1,20}[_-]){0,3}(?:api[_-]?key|access[_-]?(?:token|key)|(?:auth|hub|hf)[_-]?token|"
            r"password|passwd|secret(?:[_-]key)?))(['\"]?\s*[=:]\s*['\"]?)(?![\[<(])[^\s'\"<,}]+",
            re.IGNORECASE,
        ),
        rf"\1\2{SECRET}",
    ),
    # A capital or a digit tells a token from a name such as hf_transfer.
    (re.compile(r"\b(?:hf|api_org)_(?=[a-z]{0,40}[A-Z0-9])[A-Za-z0-9]{8,}"), SECRET),
    (re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{8,}"), SECRET),
    (re.compile(r"\b(?:gh[opsur]|github_pat|glpat|xox[abeoprs])[_-][A-Za-z0-9_-]{8,}"), SECRET),
    # Google, NVIDIA, Groq, xAI, Together, Replicate, PyPI: where models, judges and packages come from.
    (re.compile(r"\b(?:AIza|ya29\.|nvapi-|gsk_|xai-|tgp_v1_|r8_|pypi-)[A-Za-z0-9_-]{20,}"), SECRET),
    (re.compile(r"\bms-[0-9a-f]{8}-[0-9a-f-]{20,}"), SECRET),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), SECRET),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"), SECRET),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"), "<email>"),
)
SECRET_NAMES = re.compile(r"(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)$")
"""Environment variables whose whole value is one."""
NOBODY = (
    "root",
    "user",
    "users",
    "public",
    "default",
    "admin",
    "administrator",
    "ubuntu",
    "debian",
    "all users",
)
"""Names of accounts that tell nothing; in running text they are words."""
SHORTEST_NAME = 3
"""A shorter name is taken out of paths alone: as a word it would be found everywhere."""


def redact(value: Any) -> Any:
    """Return JSON data with user names, homes and secrets replaced in every string, keys included.

    Names are those of this process's user and those found in home folders anywhere in `value`. Doing it twice changes
    nothing more.
    """
    names = {os.environ.get(name, "") for name in ("USERNAME", "USER", "LOGNAME")}
    for text in _strings(value):
        for pattern in (WINDOWS_HOME, UNIX_HOME):
            names |= {found["name"].strip() for found in pattern.finditer(text)}
    words = sorted((n for n in names if len(n) >= SHORTEST_NAME and n.lower() not in NOBODY), key=len)
    known = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE) for name in reversed(words)]
    return _redact(value, known)


def _redact(value: Any, names: list[re.Pattern[str]]) -> Any:
    if isinstance(value, str):
        return _clean(value, names)
    if isinstance(value, Mapping):
        return {
            _clean(str(key), names): SECRET
            if isinstance(item, str) and item and SECRET_NAMES.search(str(key))
            else _redact(item, names)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(_redact(item, names) for item in value)
    return value


def _clean(text: str, names: list[re.Pattern[str]]) -> str:
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    for pattern in (WINDOWS_HOME, UNIX_HOME):
        text = pattern.sub(rf"\g<root>{USER}", text)
    for name in names:
        text = name.sub(USER, text)
    return text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
