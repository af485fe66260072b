"""The form of a window to which the person comes back: what another window changed meanwhile is shown in it."""

from __future__ import annotations

from typing import Any

import gradio as gr

from studio.ui.context import Context
from studio.ui.field_badges import mark_changes, mark_problems
from studio.ui.form import Form
from studio.ui.shell.scripts import read_script


class OtherWindow:
    """An unseen part of the page that reports each return; without it a choice made here would undo what was set there.

    There is one draft, and the handlers of a page read the whole form as that page shows it.
    """

    def __init__(self, context: Context, form: Form) -> None:
        """Make the part in the present layout, outside of all tabs, and bind it; after all fields are made."""
        self.context, self.form = context, form
        self.part = gr.HTML(
            {}, html_template="<i></i>", js_on_load=read_script("draft_sync.js"),
            elem_id="other-window", elem_classes=["unseen"],
        )  # fmt: skip
        fields = list(form.components.values())
        context.on(self.part.said, self.look, fields, [form.marks, *fields])

    def look(self, *values: Any) -> list[Any]:
        """Answer with the fields that hold something else at the server than in the page, and say so."""
        recipe, typed = self.context.draft(), self.context.typed()
        kept = self.form.show(recipe, typed)
        if list(values) == kept:
            return [gr.skip()] * (1 + len(kept))
        gr.Info(self.context.say("ui.draft.elsewhere"), duration=6)
        words = self.context.words
        problems = self.form.read_typed(recipe, typed)[2]
        marks = mark_problems(problems, words) | mark_changes(recipe, words)
        return [marks, *(gr.skip() if now == then else then for now, then in zip(values, kept, strict=True))]
