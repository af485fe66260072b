"""Loads a model's tokenizer: local files only, no remote code, no network, and without the model's own modules."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from transformers import AddedToken, AutoTokenizer, PreTrainedConfig

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import literal, text
from studio.core.json_file import read_json
from studio.core.recipe import AdapterSpec, Recipe
from studio.models.token_list import has_tokens, list_tokens

NAMING = ("model_type", "model_name", "tokenizer_class")
"""What AutoTokenizer reads in a model's configuration where tokenizer_config.json names a class."""


def load_tokenizer(facts: ModelFacts) -> Any:
    """Load the tokenizer of `facts.folder`; a missing padding token becomes the end-of-text token.

    Raises StudioError when the folder has none that can be read.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            facts.folder, config=_read_naming(facts.folder), trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise StudioError(
            text("model.tokenizer", name=facts.name), literal(last_line(error)), text("model.tokenizer.fix")
        ) from error
    if tokenizer.pad_token_id is None:
        # Padding is masked out everywhere, so any token will do.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def load_run_tokenizer(facts: ModelFacts, recipe: Recipe) -> Any:
    """Return the model's tokenizer with the recipe's tokens; of an adapter that is gone on from, the adapter's own.

    Raises StudioError.
    """
    if recipe.model.adapter and has_tokens(recipe.model.adapter):
        tokenizer = load_tokenizer(dataclasses.replace(facts, folder=recipe.model.adapter))
        own = tokenizer.get_added_vocab().keys() - load_tokenizer(facts).get_added_vocab().keys()
        tokenizer.recipe_tokens = frozenset(own)
        return tokenizer
    tokenizer = load_tokenizer(facts)
    add_tokens(tokenizer, recipe.adapter)
    return tokenizer


def add_tokens(tokenizer: Any, spec: AdapterSpec) -> None:
    """Add the recipe's tokens to `tokenizer`; those that it has stay as they are. Raises StudioError for their file.

    `recipe_tokens` of it are then all of them: rows may hold these, though other added words in rows are refused.
    """
    tokens = list_tokens(spec)
    known = tokenizer.get_vocab() if tokens else ()
    # Not normalised: a token is found as it is written.
    new = [
        AddedToken(one, normalized=False, special=spec.special_tokens) for one in tokens if one not in known
    ]
    tokenizer.add_tokens(new, special_tokens=spec.special_tokens)
    tokenizer.recipe_tokens = frozenset(tokens)


def _read_naming(folder: Path | str) -> PreTrainedConfig | None:
    """Return a configuration that holds no more than AutoTokenizer asks for; None where it needs the model's own.

    A model's own configuration takes its family's modules along, a second and a half of imports.
    """
    try:
        own = read_json(Path(folder) / "config.json")
        tokenizer = read_json(Path(folder) / "tokenizer_config.json")
    except StudioError:
        return None
    if not isinstance(own, dict) or not isinstance(tokenizer, dict):
        return None
    if "auto_map" in tokenizer or not isinstance(tokenizer.get("tokenizer_class"), str):
        return None
    found = PreTrainedConfig()
    for name in NAMING:
        if name in own:
            setattr(found, name, own[name])
    found._name_or_path = str(folder)
    return found


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message that says something, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
