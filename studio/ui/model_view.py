"""The HTML of the Model screen: the search box, the list of models as one group of choices, one model in detail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from studio.core.i18n import literal
from studio.services.model_fit import JUDGED_TOKENS, MethodFit, ModelFit, name_method
from studio.services.model_library import FoundModel
from studio.ui.cards import count_words, note_card, size_words

Say = Callable[..., str]
SIGNS = {"fits": "✓", "tight": "≈", "no": "✕", "unknown": "?"}
"""Beside the word and the colour, so that none of them is needed alone."""
SECTIONS = ("hub", "here", "picks")
LICENCES = {"apache-2.0": "Apache-2.0", "mit": "MIT"}
"""The hub's tags of the commonest licences -> their names; others are shown as they are."""


def search_box(say: Say) -> str:
    """Return the box that filters the list as one types, with the button that asks the hub for the same words."""
    label, hint = escape(say("ui.model.search")), escape(say("ui.model.search.hint"))
    return (
        '<div class="model-search" data-form>'
        f'<input type="search" id="model-filter" name="words" maxlength="200" autocomplete="off" spellcheck="false" '
        f'aria-label="{label}" placeholder="{hint}" aria-describedby="model-search-note">'
        f'<button type="button" class="say" id="model-search-hub" data-do="search">'
        f"{escape(say('ui.model.search.button'))}</button></div>"
        f'<p class="soft" id="model-search-note">{escape(say("ui.model.search.note"))}</p>'
    )


def model_list(
    here: Sequence[FoundModel],
    picks: Sequence[FoundModel],
    hub: Sequence[FoundModel],
    chosen: str,
    say: Say,
) -> str:
    """Return all models in one group of choices; those that cannot be trained are told with their reason."""
    sections = {"hub": hub, "here": here, "picks": picks}
    body = "".join(
        _section(name, [model for model in sections[name] if model.trainable], chosen, say)
        for name in SECTIONS
    )
    refused = [model for model in (*hub, *here) if not model.trainable]
    return (
        f'<div class="models" data-chosen="{escape(chosen)}">'
        f'<div role="radiogroup" aria-label="{escape(say("ui.model.list"))}">{body}</div>'
        f'<p class="soft none" hidden>{escape(say("ui.model.list.empty"))}</p>{_refused(refused, say)}</div>'
    )


def _section(name: str, models: Sequence[FoundModel], chosen: str, say: Say) -> str:
    if not models:
        return ""
    note = f" <small>{escape(say('ui.model.list.picks.note'))}</small>" if name == "picks" else ""
    rows = "".join(_row(model, chosen, say) for model in models)
    return f'<section data-section="{name}"><h3>{escape(say(f"ui.model.list.{name}"))}{note}</h3>{rows}</section>'


def _row(model: FoundModel, chosen: str, say: Say) -> str:
    checked = " checked" if model.source == chosen else ""
    owner, name = _split_name(model, say)
    facts = " · ".join([*([owner] if owner else []), *_facts(model, say)])
    return (
        f'<label class="model-row" data-words="{escape(f"{model.name} {model.source} {model.licence}".lower())}">'
        f'<input type="radio" name="model-choice" value="{escape(model.source)}" data-do="pick"{checked} '
        f'data-focus="pick {escape(model.source)}">'
        f'<span class="model-name">{escape(name)}</span>{fit_badge(model.fit, say)}'
        f'<span class="model-facts">{escape(facts)}</span></label>'
    )


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
    if model.hub is not None:
        facts += [say("ui.model.downloads", count=count_words(model.hub.downloads))]
        facts += [f"♥ {count_words(model.hub.likes)}"] if model.hub.likes else []
        facts += [say("ui.model.gated")] if model.hub.gated else []
    return facts


def _refused(models: Sequence[FoundModel], say: Say) -> str:
    if not models:
        return ""
    items = "".join(
        f'<li data-words="{escape(f"{model.name} {model.source}".lower())}"><b>{escape(model.name)}</b> '
        f"<span>{escape(say(model.problem))}</span></li>"
        for model in models
    )
    title = say("ui.model.list.not", count=len(models))
    return f'<details class="refused"><summary>{escape(title)}</summary><ul>{items}</ul></details>'


def fit_badge(fit: ModelFit, say: Say) -> str:
    """Return whether a model fits as sign, word and number, in the colour of the verdict."""
    number = ""
    if fit.verdict != "unknown":
        words = say("ui.model.fit.number", needed=_gib(fit.needed_bytes), has=_gib(fit.has_bytes))
        number = f" <b>{escape(words)}</b>"
    return (
        f'<span class="fit {fit.verdict}" title="{escape(say(fit.reason))}"><i aria-hidden="true">'
        f"{SIGNS[fit.verdict]}</i> {escape(say(f'ui.model.fit.{fit.verdict}'))}{number}</span>"
    )


def model_details(model: FoundModel, quantization: str, say: Say, note: str = "") -> str:
    """Return what is known of one model: whether it fits and how, what it is, what must be fetched first.

    `quantization`: as the recipe has it; `note`: what was just changed for it.
    """
    owner, name = _split_name(model, say)
    owner = f" <small>{escape(owner)}</small>" if owner else ""
    parts = [f"<h3>{escape(name)}{owner}</h3>"]
    if note:
        parts.append(f'<p class="adapted" role="status">{escape(note)}</p>')
    if not model.trainable:
        words = f"{say('ui.model.not_trainable')} {say(model.problem)}"
        parts.append(f'<p class="flag bad">{escape(words)}</p>')
    elif model.facts is None:
        parts.append(_ask(model, say))
    else:
        ready = " good" if model.here and model.fit.verdict != "no" else ""
        words = say("ui.model.trainable") if model.here else say("ui.model.download")
        if not model.here and model.weight_bytes:
            words = say("ui.model.download.size", size=size_words(model.weight_bytes))
        parts.append(f'<p class="fit-line">{fit_badge(model.fit, say)}</p>')
        parts.append(f'<p class="soft">{escape(say(model.fit.reason))}</p>')
        parts.append(_methods(model, quantization, say))
        if model.fit.verdict != "unknown":
            note = say("ui.model.fit.note", tokens=f"{JUDGED_TOKENS:,}")
            parts.append(f'<p class="soft">{escape(note)}</p>')
        parts.append(f'<p class="flag{ready}">{escape(words)}</p>')
    if model.facts is not None:
        parts.append(_rows(model, say))
    kind = "" if model.trainable else " bad"
    return f'<div class="card model{kind}" data-source="{escape(model.source)}">{"".join(parts)}</div>'


def _methods(model: FoundModel, quantization: str, say: Say) -> str:
    fit = model.fit
    if len(fit.methods) < 2:
        return ""
    rows = "".join(_method(one, one.quantization == quantization, say) for one in fit.methods)
    title = escape(say("ui.model.methods"))
    return f'<div class="methods"><h4>{title}</h4>{rows}</div>'


def _method(one: MethodFit, used: bool, say: Say) -> str:
    name = say(name_method(one))
    end = f"<em>{escape(say('ui.model.in_use'))}</em>"
    if not used:
        label = escape(f"{say('ui.model.use')}: {name}")
        end = (
            f'<button type="button" class="say" data-do="method" data-value="{one.quantization}" '
            f'aria-label="{label}">{escape(say("ui.model.use"))}</button>'
        )
    return (
        f'<div class="method {one.verdict}"><span>{escape(name)}</span>'
        f'<span class="fit {one.verdict}"><i aria-hidden="true">{SIGNS[one.verdict]}</i> '
        f"{escape(say(f'ui.model.fit.{one.verdict}'))} <b>{_gib(one.needed_bytes)} GiB</b></span>{end}</div>"
    )


def _ask(model: FoundModel, say: Say) -> str:
    """A hub model of which nothing is known yet: the button that asks, and says so."""
    return (
        f'<p class="flag">{escape(say("ui.model.download"))}</p><p class="soft">{escape(say("ui.model.ask.note"))}</p>'
        f'<p><button type="button" class="say" data-do="ask" data-value="{escape(model.source)}">'
        f"{escape(say('ui.model.ask'))}</button></p>"
    )


def _rows(model: FoundModel, say: Say) -> str:
    facts = model.facts
    stored = facts.dtype if facts.quantization == "none" else f"{facts.dtype}, {facts.quantization}"
    rows = [
        (say("ui.model.family"), facts.family),
        (say("ui.model.parameters"), count_words(facts.parameters)),
        (say("ui.model.size"), size_words(model.weight_bytes)),
        (say("ui.model.licence"), name_licence(model.licence)),
        (say("ui.model.dtype"), stored),
        (say("ui.model.layers"), f"{facts.layers} × {facts.hidden_size}" if facts.layers else ""),
        (say("ui.model.context"), f"{facts.max_positions:,}" if facts.max_positions else ""),
        (say("ui.model.vocabulary"), f"{facts.vocabulary:,}" if facts.vocabulary else ""),
    ]
    if model.here:
        rows.append((say("ui.model.template"), say("ui.yes" if facts.has_chat_template else "ui.no")))
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)
    return f"<dl>{body}</dl>"


def name_licence(licence: str) -> str:
    """Return a licence's name."""
    return LICENCES.get(licence.lower(), licence)


def search_note(words: str, count: int, hub: str, say: Say) -> str:
    """Return how many models the hub named."""
    id = "ui.model.found" if count else "ui.model.found.none"
    return note_card(
        say(id, count=count, words=literal(words), hub=literal(hub)), "good" if count else "warn"
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"
