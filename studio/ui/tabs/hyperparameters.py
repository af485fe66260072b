"""The Hyperparameters tab: the few settings that matter, the common ones, everything else folded away."""

from __future__ import annotations

from typing import Any

import gradio as gr

from studio.core.errors import RecipeError
from studio.ui.cards import note_card, plan_card, problems_card
from studio.ui.context import Context
from studio.ui.form import Form

SECTIONS = (
    ("learning", ("optim",)),
    ("adapter", ("adapter",)),
    ("run", ("name", "method", "seed", "limits")),
)


class HyperparametersTab:
    """Components and handlers of the settings and of the check before a start."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        say = context.say
        with gr.Row():
            with gr.Column(scale=6, min_width=480):
                for name, prefixes in SECTIONS:
                    with gr.Column(elem_classes=["sheet"]):
                        gr.HTML(f"<h2>{say(f'ui.settings.{name}')}</h2>")
                        form.fields(form.section(prefixes, ["basic", "common"]))
                        rest = form.section(prefixes, ["advanced"])
                        with gr.Accordion(
                            say("ui.form.advanced"), open=False, elem_id=f"settings-{name}-advanced"
                        ):
                            form.fields(rest)
            with gr.Column(scale=4, min_width=340, elem_classes=["sticky"]):
                with gr.Row():
                    self.check = gr.Button(
                        say("ui.settings.check"), elem_id="settings-check", variant="primary", size="sm"
                    )
                    self.reset = gr.Button(say("ui.settings.reset"), elem_id="settings-reset", size="sm")
                self.problems = gr.HTML(note_card(say("ui.settings.check.lead")), elem_id="settings-problems")
                self.plan = gr.HTML("", elem_id="settings-plan")

    def bind(self) -> None:
        """Check on the button; reset shows the demo's recipe."""
        inputs = list(self.form.components.values())
        options = {"show_progress": "minimal"}
        self.context.on(self.check.click, self.examine, inputs, [self.problems, self.plan], **options)
        self.context.on(self.reset.click, self.start_over, [], inputs)

    def examine(self, *values: Any) -> tuple[str, str]:
        """Return all problems of the form as it stands, and what the run would use."""
        say = self.context.say
        try:
            recipe = self.form.read(values)
        except RecipeError as error:
            return problems_card(error.problems, say), ""
        problems = self.context.desk.check(recipe)
        if any(problem.severity == "error" for problem in problems):
            return problems_card(problems, say), ""
        return problems_card(problems, say), plan_card(self.context.desk.plan(recipe), (), say)

    def start_over(self) -> list[Any]:
        """Return the values of the demo's recipe for every component."""
        recipe = self.context.desk.demo_recipe()
        self.context.keep_draft(recipe)
        return self.form.show(recipe)
