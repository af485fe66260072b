"""A run's rows, cut into tokens by the tokenizer of its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from studio.core.facts import ModelFacts
from studio.core.recipe import Recipe
from studio.data.convert import Progress
from studio.data.prepare import PreparedData, prepare
from studio.data.templates.catalogue import read_choice
from studio.models.tokenizer import load_run_tokenizer


def prepare_rows(
    recipe: Recipe,
    facts: ModelFacts,
    cache: Path | None,
    *,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[Any, PreparedData]:
    """Return the model's tokenizer and the rows as it cuts them, which are kept in `cache`. Raises as prepare()."""
    tokenizer = load_run_tokenizer(facts, recipe)
    if recipe.data.template:  # the trial, the chat and the artefact then speak as the examples do
        tokenizer.chat_template = read_choice(recipe.data.template)
    data = prepare(
        recipe.data,
        recipe.objective,
        tokenizer,
        seed=recipe.seed,
        answer_tokens=recipe.sampling.answer_tokens,
        cache=cache,
        vocabulary=max(facts.vocabulary, len(tokenizer)) if facts.vocabulary else facts.vocabulary,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    return tokenizer, data
