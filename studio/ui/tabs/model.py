"""The Model tab: pick the demo, a local folder or a hub id, and see what it is."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr

from studio.core.errors import StudioError
from studio.ui.cards import model_card, model_name, note_card, size_words
from studio.ui.context import Context
from studio.ui.form import Form

ADVANCED = ("model.adapter", "model.revision", "model.precision", "model.fp8", "model.attention")


class ModelTab:
    """Components and handlers; `context` does the work."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        say = context.say
        with gr.Row():
            with gr.Column(scale=5, min_width=360, elem_classes=["sheet"]):
                gr.HTML(f"<h2>{say('ui.model.title')}</h2><p class='lead'>{say('ui.model.lead')}</p>")
                source = form.recipe.model.source
                self.source = form.field(
                    "model.source", choices=[(source, source)], allow_custom_value=True, filterable=True
                )
                form.fields(["model.quantization"], columns=1)
                with gr.Accordion(say("ui.form.advanced"), open=False, elem_id="model-advanced"):
                    form.fields(ADVANCED)
            with gr.Column(scale=4, min_width=320, elem_classes=["sticky"]):
                self.card = gr.HTML(note_card(say("ui.model.loading")), elem_id="model-card")

    def bind(self) -> None:
        """Show what the chosen source is whenever it changes."""
        self.show_card(self.source.change)

    def show_card(self, event: Callable) -> None:
        """Show the source's card on `event`: one at a time, so that a slow answer never replaces a later one."""
        self.context.on(
            event, self.describe, [self.source], [self.card], concurrency_id="model-card", concurrency_limit=1
        )

    def describe(self, source: str) -> str:
        """Return the card of a model; a refusal is shown in its place."""
        say = self.context.say
        if not (source or "").strip():
            return note_card(say("ui.model.choose"))
        try:
            return model_card(self.context.desk.model(source.strip()), say)
        except StudioError as error:
            words = " ".join(say(part) for part in (error.what, error.why, error.fix))
            return note_card(words, "bad")

    def choices(self, source: str) -> dict:
        """Return the picker with every model found on this machine; its value, which may be edited, stays."""
        try:
            found = [(self._name(model), model.source) for model in self.context.desk.models()]
        except StudioError:
            found = []  # the card beside the picker says what is wrong with the chosen one
        if source and source not in [value for _, value in found]:
            found.append((source, source))
        return gr.update(choices=found)

    def _name(self, model) -> str:
        name = model_name(model, self.context.say)
        return f"{name} · {size_words(model.weight_bytes)}" if model.weight_bytes else name
