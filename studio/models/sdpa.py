"""Whether a family's attention can go through PyTorch's fused one, read from the source of transformers as text."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

SAID = re.compile(r"^    _supports_sdpa = (True|False)", re.MULTILINE)


@lru_cache(maxsize=64)
def supports_sdpa(family: str, architecture: str) -> bool:
    """Return whether the class `architecture` of `family` takes it; True where its source does not say.

    Importing transformers takes seconds and loads torch. What this does not see (a class that inherits the word from
    another family's file), loading does: studio/models/load.py.
    """
    source = _read_source(family, architecture)
    return _find_word(source, architecture) is not False


def _find_word(source: str, name: str) -> bool | None:
    """Return what the class `name` says of it, or the first of its bases in this file that does; None for nothing."""
    if name == "PreTrainedModel":
        return False  # as transformers has it where nobody says otherwise
    head = re.search(rf"^class {name}\(([^)]*)\):", source, re.MULTILINE)
    if head is None:
        return None
    if said := SAID.search(re.split(r"^\S", source[head.end() :], maxsplit=1, flags=re.MULTILINE)[0]):
        return said[1] == "True"
    found = (_find_word(source, base.strip()) for base in head[1].split(","))
    return next((word for word in found if word is not None), None)


def _read_source(family: str, architecture: str) -> str:
    """Return the file that defines the class; "" where it is not found."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None or not re.fullmatch(r"[\w-]+", family or "-") or not architecture:
        return ""
    models = Path(spec.origin).parent / "models"
    name = family.replace("-", "_")
    for folder in (name, name.removesuffix("_text"), name.replace("_", "")):
        for file in sorted((models / folder).glob("modeling_*.py")) if folder else ():
            words = file.read_text(encoding="utf-8")
            if f"class {architecture}(" in words:
                return words
    return ""
