"""Which format rows are read in where the model itself is to answer: as questions with all columns, if they can."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from studio.core.recipe import SAMPLING, DatasetSpec
from studio.data.convert import understand_source
from studio.data.formats.rl import FORMAT
from studio.data.row import RowError
from studio.data.source import Source, open_source
from studio.data.understanding import Understanding

WEAK = ("prompt_completion", "text")
"""Formats that hold a question, too, and lose the columns beside it, which rewards may want."""


def settle_asked(spec: DatasetSpec, objective: str, cache: Path | None = None) -> DatasetSpec:
    """Return `spec` with the format `rl` where nobody chose one and `objective` asks: it says what data leave open.

    Where its rows do not tell the question by themselves (mbpp has a task, its code and its tests), the columns of
    question and answer are those that learning by examples would take. As it is where rows are chats that end with an
    answer, or are no questions. Raises StudioError for a source that cannot be read.
    """
    if objective not in SAMPLING or spec.format != "auto":
        return spec
    source = open_source(spec, cache=cache)
    found = understand_source(source, spec, cache)
    if _is_sure(found) and found.format.name not in WEAK and _reads(source, found):
        return spec
    for mapping in (spec.mapping, _ask_for(found)):
        if mapping is None or not {*mapping} <= {*FORMAT.roles}:
            continue
        asked = dataclasses.replace(spec, format="rl", mapping=mapping)
        other = understand_source(source, asked, cache)
        if _is_sure(other) and _reads(source, other):
            return asked
    return spec


def _ask_for(found: Understanding) -> dict[str, str] | None:
    """Return the mapping of an example as that of a question with an answer to check; None where it is none."""
    if not _is_sure(found) or found.format.name != "prompt_completion":
        return None
    return {"answer" if role == "completion" else role: column for role, column in found.mapping.items()}


def _is_sure(found: Understanding) -> bool:
    return found.readable and not found.questions


def _reads(source: Source, found: Understanding) -> bool:
    """Return whether any row of the head is one of the format."""
    for row in source.sample:
        try:
            found.read_row(row)
        except RowError:
            continue
        return True
    return False
