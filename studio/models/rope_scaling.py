"""Stretches a model's rotary positions for texts longer than it was trained on: as transformers does, without torch.

linear: position / factor (Chen et al., 2023, arXiv:2306.15595)
dynamic: the base grows with the text where it is longer than the model's limit (NTK-aware)
yarn: low frequencies are stretched, high ones kept, scores scaled (Peng et al., 2023, arXiv:2309.00071)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.core.recipe import Recipe

PLAIN = "default"
STRETCHED = "full_attention"
"""Of ropes by kind of layer (Gemma 3), the one that is stretched: windowed layers look no further than their window."""


def name_scaling(recipe: Recipe) -> str:
    """Return how a recipe stretches positions, such as `yarn 4`, "" where it does not."""
    chosen = recipe.model
    return "" if chosen.rope_scaling == "none" else f"{chosen.rope_scaling} {chosen.rope_factor:g}"


def count_positions(model: ModelFacts, recipe: Recipe) -> int:
    """Return the tokens that `model` reads when stretched as the recipe says; 0 where its limit is not known."""
    factor = 1.0 if recipe.model.rope_scaling == "none" else recipe.model.rope_factor
    return int(model.max_positions * factor)


def scale_config(config: Any, scaling: str) -> None:
    """Stretch the positions of a model's `config` (its language part's) by `scaling`, see name_scaling().

    `max_position_embeddings` grows with it, but for `dynamic`, which compares a text with the model's own limit.
    Raises StudioError for a model without rotary positions, or whose positions are stretched already.
    """
    kind, _, factor = scaling.partition(" ")
    part = config.get_text_config()
    ropes = getattr(part, "rope_parameters", None)
    limit = int(getattr(part, "max_position_embeddings", 0) or 0)
    if not isinstance(ropes, dict) or not limit:
        raise StudioError(text("rope.none"), text("rope.none.why"), text("rope.fix"))
    rope = ropes.get(STRETCHED, ropes)
    if rope.get("rope_type", PLAIN) != PLAIN:
        raise StudioError(text("rope.own"), text("rope.own.why", kind=rope["rope_type"]), text("rope.fix"))
    stretched = rope | {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        stretched["original_max_position_embeddings"] = limit
    part.rope_parameters = ropes | {STRETCHED: stretched} if STRETCHED in ropes else stretched
    if kind != "dynamic":
        part.max_position_embeddings = int(limit * float(factor))


def read_kind(folder: str) -> str:
    """Return how the positions of the model in `folder` are stretched already; "" where not, or not known."""
    try:
        found: Any = read_json(Path(folder) / "config.json")
    except StudioError:
        return ""
    part = found.get("text_config", found) if isinstance(found, dict) else {}
    ropes = part.get("rope_parameters") or part.get("rope_scaling") if isinstance(part, dict) else None
    rope = ropes.get(STRETCHED, ropes) if isinstance(ropes, dict) else {}
    kind = str(rope.get("rope_type", rope.get("type", PLAIN))) if isinstance(rope, dict) else PLAIN
    return "" if kind == PLAIN else kind
