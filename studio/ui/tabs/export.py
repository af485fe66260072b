"""The Export tab: write a run's result in the form that other programs take."""

from __future__ import annotations

import gradio as gr

from studio.core.errors import StudioError
from studio.core.text import text
from studio.ui.cards import export_card, note_card, run_label
from studio.ui.context import Context

TARGETS = ("adapter", "merged")


class ExportTab:
    """Components and handlers."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Column(elem_classes=["sheet", "narrow"]):
            gr.HTML(f"<h2>{say('ui.export.title')}</h2><p class='lead'>{say('ui.export.lead')}</p>")
            self.run = gr.Dropdown(
                choices=[],
                label=say("ui.export.run"),
                elem_id="export-run",
                filterable=False,
                interactive=True,
            )
            self.target = gr.Radio(
                choices=[(say(f"ui.export.{target}"), target) for target in TARGETS],
                value="adapter",
                label=say("ui.export.target"),
                info=say("ui.export.target.help"),
                elem_id="export-target",
                elem_classes=["cards"],
            )
            self.start = gr.Button(
                say("ui.export.start"), elem_id="export-start", variant="primary", scale=0, min_width=180
            )
            self.result = gr.HTML("", elem_id="export-result")

    def bind(self, tab: gr.Tab) -> None:
        """Export on the button; opening the tab looks for runs."""
        self.context.on(tab.select, self.choices, [self.run], [self.run])
        self.context.on(self.start.click, self.export, [self.run, self.target], [self.result])

    def choices(self, run: str | None) -> dict:
        """Return the picker with the runs that have a result, the newest chosen."""
        records = [record for record in self.context.desk.runs() if record.state == "finished"]
        names = [(run_label(record, self.context.say), record.run) for record in records]
        known = [value for _, value in names]
        return gr.update(choices=names, value=run if run in known else (known[0] if known else None))

    def export(self, run: str, target: str):
        """Yield a note that it is being written, then where it lies."""
        say = self.context.say
        if not run:
            raise StudioError(text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix"))
        yield note_card(say("ui.export.working"))
        try:
            done = self.context.desk.export(run, target)
        except StudioError as error:
            yield note_card(" ".join(say(part) for part in (error.what, error.why, error.fix)), "bad")
            return
        yield export_card(str(done.path), done.size_bytes, say)
