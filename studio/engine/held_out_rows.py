"""The held-out rows of a run as questions with given answers, cut into tokens as the run cut them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import text
from studio.core.recipe import Recipe
from studio.data.questions import QuestionRow, QuestionSet
from studio.engine.rows import prepare_rows
from studio.engine.stop_tokens import find_ends
from studio.engine.training_answers import find_answer

ROLE = re.compile(r"^(?:system|user|human|assistant|model|bot)\s*(?:\n|$)", re.IGNORECASE)
"""What templates write before a turn, beside their markers."""


def read_held_out(recipe: Recipe, facts: ModelFacts, cache: Path | None, name: str) -> QuestionSet:
    """Return the rows that the run of `recipe` validated on: the last answer of each is the expected one.

    Raises StudioError where none were held out, or none of them asks anything; as prepare_rows() does.
    """
    tokenizer, data = prepare_rows(recipe, facts, cache)
    ends = find_ends(tokenizer, tokenizer.eos_token_id)
    rows = []
    for number, row in enumerate(data.validation, 1):
        length = row.lengths[0]
        begin, end = find_answer(row.trained[:length], lambda begins: len(begins) - 1)
        if begin <= 1 or end <= begin:
            rows.append(QuestionRow(number, problem=text("eval.row.no_question")))
            continue
        prompt, expected = row.token_ids[:begin].tolist(), row.token_ids[begin:end].tolist()
        said = ends.cut(tokenizer.decode(expected, skip_special_tokens=True)).strip()
        shown = say_prompt(tokenizer, prompt)
        values = {"prompt": shown, "expected": said}
        messages = ({"role": "user", "content": shown},)
        rows.append(
            QuestionRow(
                number, messages, said, values, prompt_ids=tuple(prompt), expected_ids=tuple(expected)
            )
        )
    found = QuestionSet(name, tuple(rows))
    if not found.asked:
        raise StudioError(
            text("eval.no_held_out"), text("eval.no_held_out.why"), text("eval.no_held_out.fix")
        )
    return found


def say_prompt(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return a prompt as a person would say it: without a template's markers and names of roles."""
    specials, parts = set(tokenizer.all_special_ids), [[]]
    for id in ids:
        parts.append([]) if id in specials else parts[-1].append(id)
    said = [ROLE.sub("", tokenizer.decode(part).strip()).strip() for part in parts]
    return "\n".join(words for words in said if words)
