"""What requirements.txt asks for and what a Python has of it; judges the Python that `launch.py --here` runs on.

Standard library only, imports nothing of studio: it works where nothing is installed. Run as a file it prints what its
own Python lacks of the requirement files that it is given, as a JSON list.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

SOMETIMES = ("gradio", "keyring", "trl", "datasets", "openpyxl", "zstandard", "charset-normalizer", "gguf")
"""What a command does without until it is needed: the window, a token kept for the hub, steps filled to the brim,
spreadsheets, .zst files, text in an old encoding, GGUF files. studio/core/packages.py then says which is missing."""
RARELY = ("llguidance",)
"""What the window does without, too: only answers that are to keep to a JSON schema need it."""
LINE = re.compile(r"^([A-Za-z0-9._-]+)\s*([^;#]*)(?:;\s*sys_platform == \"(\w+)\")?")


def find_unsuitable(file: Path, *, window: bool) -> list[str]:
    """Return what this Python lacks of the requirements in `file`: "trl>=1.16,<2", or "torch>=2.11,<2.15 (2.9.1)".

    Without `window` those that are needed for some files or settings alone are not asked for.
    """
    lacking = []
    for name, ranges in read_requirements(file):
        if name in RARELY or (name in SOMETIMES and not window):
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found is None or not is_within(found, ranges):
            lacking.append(name + ranges + (f" ({found})" if found else ""))
    return lacking


def read_requirements(file: Path) -> list[tuple[str, str]]:
    """Return (name, ranges) of every requirement in `file` that is for this system."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        match = LINE.match(line.strip())
        if match and match.group(3) in (None, sys.platform):
            found.append((match.group(1), match.group(2).strip()))
    return found


def is_within(version: str, ranges: str) -> bool:
    """Return whether `version` lies in `ranges` such as ">=2.11,<2.15"; local parts (+cu130) do not matter."""
    own = _numbers(version)
    for part in filter(None, (part.strip() for part in ranges.split(","))):
        sign, wanted = re.match(r"(==|!=|>=|<=|<|>)\s*(.+)", part).groups()
        other = _numbers(wanted)
        width = max(len(own), len(other))
        left, right = (numbers + (0,) * (width - len(numbers)) for numbers in (own, other))
        holds = {
            "==": left == right,
            "!=": left != right,
            ">=": left >= right,
            "<=": left <= right,
            "<": left < right,
            ">": left > right,
        }
        if not holds[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", version).group().split("."))


if __name__ == "__main__":
    json.dump(
        [part for name in sys.argv[1:] for part in find_unsuitable(Path(name), window=True)], sys.stdout
    )
