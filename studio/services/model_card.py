"""The card of a result that is shared: base, method, settings, curves and scores; data described, never shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from studio.core.events import DataPrepared, EvalLogged, RunEvent, StepLogged
from studio.core.recipe import Recipe, read_value, settle_objective, settle_rate
from studio.core.run_record import RunRecord
from studio.data.remote import HUB_ID

KINDS = {
    "adapter": ("adapter", "peft"), "adapter_gguf": ("adapter", "gguf"), "merged": ("finetune", "transformers"),
    "fp8": ("quantized", "transformers"), "w4a16": ("quantized", "transformers"), "mlx": ("quantized", "mlx"),
}  # fmt: skip
"""Form -> relation to the base and library, as the hub's cards name them."""
SHOWN = (
    "adapter.method", "adapter.rank", "adapter.alpha", "adapter.dropout", "optim.learning_rate", "optim.batch_size",
    "optim.schedule", "optim.weight_decay", "optim.optimizer", "data.max_length", "data.train_on", "seed",
)  # fmt: skip
ROWS = 12
"""Points of the curve that the card has."""


def write_card(
    record: RunRecord, recipe: Recipe, events: Sequence[RunEvent], form: str, licence: str = ""
) -> str:
    """Return the card; of paths nothing but a hub id is named. `licence` is the base's, "" where nobody knows."""
    facts = next((event.facts for event in reversed(events) if isinstance(event, DataPrepared)), None)
    recipe = settle_rate(settle_objective(recipe, facts.format if facts is not None else ""))
    relation, library = KINDS.get(form, ("quantized", "gguf"))
    base = record.base if HUB_ID.fullmatch(record.base) and not Path(record.base).exists() else ""
    head = {"base_model": base, "base_model_relation": relation if base else "", "library_name": library}
    head |= {"pipeline_tag": "text-generation", "license": licence}
    lines = ["---", *(f"{key}: {value}" for key, value in head.items() if value)]
    lines += [
        "tags:",
        "- finetune-studio",
        f"- {recipe.objective}",
        "---",
        f"# {plain_name(record.name)}",
        "",
    ]
    lines += [f"Fine-tuned from {base or 'a model on the author’s own disk'} with Finetune Studio.", ""]
    if facts is not None:
        lines += [
            "## Data",
            "",
            f"{facts.rows_used:,} rows in the form {facts.format}, {facts.tokens:,} tokens, of which "
            f"{facts.trained_tokens:,} were learned. The rows are not part of this repository.",
            "",
        ]
    lines += ["## Settings", "", "| setting | value |", "|---|---|"]
    lines += [f"| {path} | {json.dumps(read_value(recipe, path))} |" for path in SHOWN]
    told = {event.step: event for event in events if isinstance(event, StepLogged)}
    steps = [told[step] for step in sorted(told)]  # one that was done again after a resume counts once
    looks = [event for event in events if isinstance(event, EvalLogged)]
    measure = "held-out reward" if any(event.reward is not None for event in looks) else "validation loss"
    evals = {event.step: event.loss if event.reward is None else event.reward for event in looks}
    if steps:
        shown = {one.step: one for one in [*steps[:: max(1, len(steps) // ROWS)][:ROWS], steps[-1]]}
        lines += ["", "## Curve", "", f"| step | loss | {measure} |", "|---|---|---|"]
        lines += [
            f"| {one.step} | {one.loss:.4f} | {f'{evals[one.step]:.4f}' if one.step in evals else ''} |"
            for one in shown.values()
        ]
    if evals:
        lines += ["", f"Last {measure}: {list(evals.values())[-1]:.4f}."]
    return "\n".join([*lines, ""])


def plain_name(name: str) -> str:
    """Return a run's name in one line, without what Markdown or HTML would read in it."""
    return "".join(sign for sign in " ".join(name.split()) if sign not in "<>[]()`|#*") or "model"
