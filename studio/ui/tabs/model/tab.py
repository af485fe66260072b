"""The Model tab: pick the demo, a model on this machine, a good pick or one from the hub, and see whether it fits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import literal
from studio.core.recipe import FOUR_BITS, Recipe
from studio.hub.access_token import show_address
from studio.services.model_fit import name_method
from studio.services.model_library import FoundModel
from studio.ui.cards import heading, model_name, note_card
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.quantities import size_words
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.model.cards import model_details, model_list, search_note
from studio.ui.templates import render

ADVANCED = (
    "model.more_bits",
    "model.adapter",
    "model.revision",
    "model.precision",
    "model.fp8",
    "model.attention",
    "model.rope_scaling",
    "model.rope_factor",
)
REDRAW_S = 0.4
"""While models are looked for, the list is drawn anew at most that often."""


class ModelTab:
    """Components and handlers; what is known of models lives at the desk."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        say = context.say
        with gr.Row():
            with gr.Column(scale=5, min_width=340, elem_classes=["sheet"]):
                gr.HTML(heading(say("ui.model.title"), say("ui.model.lead")))
                gr.HTML(
                    render("tabs/model/search.html", say),
                    js_on_load=read_script("tabs/model/script.js"),
                    elem_id="model-search",
                )
                self.asked = gr.HTML("", elem_id="model-search-result")
                self.list = gr.HTML(note_card(say("ui.model.loading")), elem_id="model-list")
                self.voice = make_voice("#tab-model", "model-said")
                source = form.recipe.model.source
                self.source = form.field(
                    "model.source", choices=[(source, source)], allow_custom_value=True, filterable=True
                )
                form.fields(["model.quantization"], columns=1)
                with gr.Accordion(say("ui.form.advanced"), open=False, elem_id="model-advanced"):
                    form.fields(ADVANCED)
            with gr.Column(scale=4, min_width=300, elem_classes=["sticky"]):
                self.card = gr.HTML(note_card(say("ui.model.loading")), elem_id="model-card")
        self.quantization = form.components["model.quantization"]

    def bind(self, tab: gr.Tab) -> None:
        """Look for models when the tab is opened; show what is chosen whenever that changes."""
        self.found = gr.State(
            ()
        )  # hub ids that this page's last search named; outside of the tab, which may be hidden
        on = self.context.on
        on(tab.select, self.open, [self.found], [self.list])
        self.show_card(self.source.change)
        self.show_card(self.quantization.change)
        on(self.source.change, self.mark, [self.source, self.found], [self.list], trigger_mode="always_last")
        self.heard = [self.found, self.asked, self.list, self.source, self.quantization, self.card]
        on(self.voice.said, self.hear, [self.voice, self.found], self.heard, trigger_mode="multiple")

    def show_card(self, event: Callable) -> None:
        """Show the source's card on `event`: one at a time, so that a slow answer never replaces a later one."""
        self.context.on(
            event,
            self.describe,
            [self.source, self.quantization, self.card],
            [self.card],
            concurrency_id="model-card",
            concurrency_limit=1,
        )

    # Handlers -----------------------------------------------------------------------------------------------------

    def open(self, found: tuple[str, ...]) -> Iterator[str]:
        """Yield the list as models are found, at last with what is advised for this machine.

        The chosen one is that of the moment: another may be chosen while models are still being found.
        """
        fits, drawn_s = self.context.desk.models, 0.0
        here: tuple[FoundModel, ...] = ()
        for here in fits.scan():
            if time.monotonic() - drawn_s > REDRAW_S:
                drawn_s = time.monotonic()
                yield self._list(here, (), found, self.context.draft().model.source)
        picks = fits.picks()
        yield self._list(here, picks, found, self.context.draft().model.source)

    def mark(self, source: str, found: tuple[str, ...]) -> str:
        """Return the list with another model chosen."""
        fits = self.context.desk.models
        return self._list(fits.models(), fits.picks(), found, (source or "").strip())

    def describe(self, source: str, quantization: str = "none", card: str = "") -> Any:
        """Return the card of a model; a refusal is shown in its place. One that was just adapted stays as it is."""
        say = self.context.say
        source = (source or "").strip()
        if not source:
            return note_card(say("ui.model.choose"))
        try:
            shown = model_details(self.context.desk.models.find(source), quantization, say)
        except StudioError as error:
            return note_card(self.context.say_error(error), "bad")
        # What was said of the choice stays until another is made: hearing it and showing it are two events.
        card, note_start, note_end = str(card), '<p class="adapted"', "</p>"
        if note_start in card:
            note = card[card.index(note_start) :].partition(note_end)[0] + note_end
            if card.replace(note, "") == shown:
                return gr.skip()
        return shown

    def hear(self, said: object, found: tuple[str, ...]) -> Iterator[list[Any]]:
        """Do what a part of the list or the card reports; what it says is looked at like any input.

        The recipe is the draft's as it is then: the hub may take seconds to answer, in which the form is edited.
        """
        do, value, form = read_said(said)
        if do == "search":
            yield from self._search(str(form.get("words", "")).strip(), found)
        elif do == "ask":
            yield self._answer(asked=note_card(self.context.say("ui.model.searching", hub=self._hub())))
            model = self.context.desk.models.ask(value)
            still = model.source == self.context.draft().model.source
            yield self._choose(model, found) if still else self._answer(asked="")
        elif do == "pick" and value:
            yield self._choose(self.context.desk.models.find(value), found)
        elif do == "method" and value in ("none", "nf4", "int8"):
            recipe = self.context.edit({"model.quantization": value})
            card = self.describe(recipe.model.source, value)
            yield self._answer(quantization=value, card=card)
        else:  # a handler that yields nothing at all would empty what it could have changed
            yield self._answer()

    def choices(self, source: str) -> dict:
        """Return the picker with every model found on this machine; its value, which may be edited, stays."""
        try:
            found = [(self._name(model), model.source) for model in self.context.desk.models.list_local()]
        except StudioError:
            found = []  # the card beside the picker says what is wrong with the chosen one
        if source and source not in [value for _, value in found]:
            found.append((source, source))
        return gr.update(choices=found)

    # Inside -------------------------------------------------------------------------------------------------------

    def _search(self, words: str, found: tuple[str, ...]) -> Iterator[list[Any]]:
        say, fits = self.context.say, self.context.desk.models
        if not words:
            yield self._answer(asked=note_card(say("ui.model.search.empty"), "warn"))
            return
        yield self._answer(asked=note_card(say("ui.model.searching", hub=self._hub())))
        try:
            models = fits.search(words)
        except StudioError as error:
            yield self._answer(asked=note_card(self.context.say_error(error), "bad"))
            return
        found = tuple(model.source for model in models)
        chosen = self.context.draft().model.source
        yield self._answer(
            found=found,
            asked=search_note(words, len(found), self._hub().values["words"], say),
            list=self._list(fits.models(), fits.picks(), found, chosen),
        )

    def _choose(self, model: FoundModel, found: tuple[str, ...]) -> list[Any]:
        """Make `model` the recipe's, in 4 or 8 bits where it does not fit as the recipe holds models now."""
        with self.context.editing:
            adapted, note = self._adapt(self.context.draft(), model)
            recipe = self.context.edit({"model.source": model.source} | adapted)
        fits, quantization = self.context.desk.models, recipe.model.quantization
        return self._answer(
            asked="",
            list=self._list(fits.models(), fits.picks(), found, model.source),
            source=model.source,
            quantization=quantization if adapted else gr.skip(),
            card=model_details(model, quantization, self.context.say, note),
        )

    def _adapt(self, recipe: Recipe, model: FoundModel) -> tuple[dict[str, str], str]:
        """Return what must change of the recipe for `model`, and what is said of it."""
        methods = {one.quantization: one for one in model.fit.methods}
        held = recipe.model.quantization
        now = methods.get("nf4" if held in FOUR_BITS else held)
        best = next((one for one in model.fit.methods if one.method == model.fit.method), None)
        fits = best is not None and best.verdict != "no"
        if recipe.adapter.method == "full" or not fits or now is None or now.verdict != "no":
            return {}, ""
        note = self.context.say("ui.model.adapted", method=name_method(best))
        return {"model.quantization": best.quantization}, note

    def _list(
        self,
        here: tuple[FoundModel, ...],
        picks: tuple[FoundModel, ...],
        found: tuple[str, ...],
        chosen: str,
    ) -> str:
        hub = []
        for source in found:
            try:
                hub.append(self.context.desk.models.find(source))
            except StudioError:
                continue  # it came onto this machine since, and is broken: the list says so there
        named = {model.source for model in (*here, *hub)}
        return model_list(
            [model for model in here if model.source not in found],
            [model for model in picks if model.source not in named],
            hub,
            chosen,
            self.context.say,
        )

    def _answer(self, **parts: Any) -> list[Any]:
        names = ("found", "asked", "list", "source", "quantization", "card")
        return [parts.get(name, gr.skip()) for name in names]

    def _hub(self):
        """The address that is asked, without a password in it."""
        address = self.context.desk.machine.mirror().find_address(os.environ)
        return literal(show_address(address) or address)

    def _name(self, model: Any) -> str:
        name = model_name(model, self.context.say)
        return f"{name} · {size_words(model.weight_bytes)}" if model.weight_bytes else name
