"""What the Model screen tells: the list of models as one group of choices, one model in detail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from studio.core.facts import ModelFacts
from studio.core.i18n import literal
from studio.core.recipe import FOUR_BITS
from studio.services.model_fit import JUDGED_TOKENS, count_active, name_method
from studio.services.model_library import FoundModel
from studio.ui.cards import note_card
from studio.ui.quantities import count_words, size_words
from studio.ui.templates import render

Say = Callable[..., str]
SIGNS = {"fits": "✓", "tight": "≈", "no": "✕", "unknown": "?"}
"""Beside the word and the colour, so that none of them is needed alone."""
SECTIONS = ("hub", "here", "picks")
LICENCES = {"apache-2.0": "Apache-2.0", "mit": "MIT"}
"""The hub's tags of the commonest licences -> their names; others are shown as they are."""
PROGRAMS = {"ollama": "Ollama", "lmstudio": "LM Studio", "llama.cpp": "llama.cpp"}
"""Programs that keep models of their own, by their names."""


def model_list(
    here: Sequence[FoundModel],
    picks: Sequence[FoundModel],
    hub: Sequence[FoundModel],
    chosen: str,
    say: Say,
) -> Markup:
    """Return all models in one group of choices; those that cannot be trained are told with their reason."""
    sections = {"hub": hub, "here": here, "picks": picks}
    return render(
        "tabs/model/list.html",
        say,
        sections=[
            (name, [_describe(model, say) for model in sections[name] if model.trainable])
            for name in SECTIONS
        ],
        refused=[model for model in (*hub, *here) if not model.trainable],
        chosen=chosen,
        signs=SIGNS,
    )


def _describe(model: FoundModel, say: Say) -> dict[str, Any]:
    owner, name = _split_name(model, say)
    return {
        "source": model.source,
        "name": name,
        "words": f"{model.name} {model.source} {model.licence}".lower(),
        "fit": model.fit,
        "facts": [*([owner] if owner else []), *_facts(model, say)],
    }


def _split_name(model: FoundModel, say: Say) -> tuple[str, str]:
    """Return (owner, name)."""
    if model.origin == "demo":
        return "", say("ui.model.demo")
    owner, _, name = model.name.rpartition("/")
    return owner, name


def _facts(model: FoundModel, say: Say) -> list[str]:
    parameters = (model.facts.parameters if model.facts else 0) or (model.hub.parameters if model.hub else 0)
    facts = [count_words(parameters)] if parameters else []
    facts += [size_words(model.weight_bytes)] if model.weight_bytes else []
    facts += [name_licence(model.licence)] if model.licence else []
    facts += [PROGRAMS[model.origin]] if model.origin in PROGRAMS else []
    facts += ["GGUF"] if model.facts and model.facts.packed else []
    if model.hub is not None:
        facts += [say("ui.model.downloads", count=count_words(model.hub.downloads))]
        facts += [f"♥ {count_words(model.hub.likes)}"] if model.hub.likes else []
        facts += [say("ui.model.gated")] if model.hub.gated else []
    return facts


def model_details(model: FoundModel, quantization: str, say: Say, note: str = "") -> Markup:
    """Return what is known of one model: whether it fits and how, what it is, what must be fetched first.

    `quantization`: as the recipe has it; `note`: what was just changed for it.
    """
    owner, name = _split_name(model, say)
    return render(
        "tabs/model/details.html",
        say,
        model=model,
        owner=owner,
        name=name,
        note=note,
        quantization="nf4" if quantization in FOUR_BITS else quantization,
        methods=[(one, say(name_method(one))) for one in model.fit.methods],
        tokens=JUDGED_TOKENS,
        rows=_rows(model, say) if model.facts is not None else [],
        signs=SIGNS,
    )


def _rows(model: FoundModel, say: Say) -> list[tuple[str, str]]:
    facts = model.facts
    stored = facts.dtype if facts.quantization == "none" else f"{facts.dtype}, {facts.quantization}"
    rows = [
        (say("ui.model.family"), facts.family),
        (say("ui.model.parameters"), count_words(facts.parameters)),
        (say("ui.model.active"), _active_words(facts)),
        (say("ui.model.size"), size_words(model.weight_bytes)),
        (say("ui.model.licence"), name_licence(model.licence)),
        (say("ui.model.dtype"), stored),
        (say("ui.model.layers"), f"{facts.layers} × {facts.hidden_size}" if facts.layers else ""),
        (say("ui.model.context"), f"{facts.max_positions:,}" if facts.max_positions else ""),
        (say("ui.model.vocabulary"), f"{facts.vocabulary:,}" if facts.vocabulary else ""),
    ]
    if model.here:
        rows.append((say("ui.model.template"), say("ui.yes" if facts.has_chat_template else "ui.no")))
    return [(name, value) for name, value in rows if value]


def _active_words(facts: ModelFacts) -> str:
    active = count_active(facts)
    return count_words(active) if active < facts.parameters else ""


def name_licence(licence: str) -> str:
    """Return a licence's name."""
    return LICENCES.get(licence.lower(), licence)


def search_note(words: str, count: int, hub: str, say: Say) -> str:
    """Return how many models the hub named."""
    id = "ui.model.found" if count else "ui.model.found.none"
    return note_card(
        say(id, count=count, words=literal(words), hub=literal(hub)), "good" if count else "warn"
    )
