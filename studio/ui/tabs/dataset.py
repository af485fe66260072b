"""The Dataset tab: bring examples, see their rows, what the model sees of them, and what it learns."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.files import replace_file
from studio.core.text import literal, text
from studio.ui.cards import mask_card, note_card, text_card
from studio.ui.context import Context
from studio.ui.form import Form

FILE_TYPES = [".jsonl", ".json", ".csv", ".parquet"]
PREVIEW_ROWS = 5
CELL_CHARACTERS = 400


class DatasetTab:
    """Components and handlers; the form's other parts decide how rows are rendered, so a preview reads them all."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        say = context.say
        with gr.Row():
            with gr.Column(scale=4, min_width=340, elem_classes=["sheet"]):
                gr.HTML(f"<h2>{say('ui.dataset.title')}</h2><p class='lead'>{say('ui.dataset.lead')}</p>")
                self.source = form.field("data.source")
                with gr.Row():
                    self.upload = gr.UploadButton(
                        say("ui.dataset.upload"), file_types=FILE_TYPES, elem_id="dataset-upload", size="sm"
                    )
                    self.button = gr.Button(
                        say("ui.dataset.preview"), elem_id="dataset-preview", size="sm", variant="primary"
                    )
                form.fields(form.section(["data"], ["basic", "common"]))
                with gr.Accordion(say("ui.form.advanced"), open=False, elem_id="dataset-advanced"):
                    form.fields(form.section(["data"], ["advanced"]), columns=1)
            with gr.Column(scale=6, min_width=420, elem_classes=["sheet"]):
                self.verdict = gr.HTML(note_card(say("ui.dataset.none")), elem_id="dataset-verdict")
                self.table = gr.Dataframe(
                    datatype="str",
                    type="array",
                    interactive=False,
                    visible=False,
                    elem_id="dataset-rows",
                    max_height=240,
                    max_chars=160,
                    show_label=False,
                    buttons=[],
                )
                self.row = gr.Radio(
                    choices=[],
                    label=say("ui.dataset.example"),
                    visible=False,
                    elem_id="dataset-example",
                    elem_classes=["inline"],
                )
                self.seen_title = gr.HTML(f"<h3>{say('ui.dataset.seen')}</h3>", visible=False)
                self.seen = gr.HTML("", elem_id="dataset-rendered")
                self.learned_title = gr.HTML(
                    f"<h3>{say('ui.dataset.learned')}</h3><p class='lead'>{say('ui.dataset.learned.lead')}</p>",
                    visible=False,
                )
                self.learned = gr.HTML("", elem_id="dataset-mask")
        self.examples = gr.State([])

    def bind(self, tab: gr.Tab) -> None:
        """Preview on the button, on Enter, on an upload, and when the tab is opened for the first time."""
        inputs = list(self.form.components.values())
        parts = [
            self.verdict,
            self.table,
            self.row,
            self.seen_title,
            self.seen,
            self.learned_title,
            self.learned,
        ]
        outputs = [*parts, self.examples]
        self.context.on(self.button.click, self.preview, inputs, outputs, show_progress="minimal")
        self.context.on(self.source.submit, self.preview, inputs, outputs, show_progress="minimal")
        self.context.on(
            tab.select, self.first_preview, [self.examples, *inputs], outputs, show_progress="minimal"
        )
        taken = self.context.on(self.upload.upload, self.take_file, [self.upload], [self.source])
        self.context.on(taken.then, self.preview, inputs, outputs, show_progress="minimal")
        self.context.on(self.row.input, self.pick, [self.row, self.examples], [self.seen, self.learned])

    def first_preview(self, examples: list, *values: Any) -> Any:
        """Preview once without being asked; later the button does."""
        if examples:
            return [gr.skip()] * 8
        return self.preview(*values)

    def preview(self, *values: Any) -> list[Any]:
        """Return the first rows as a table, the first one as the model sees it, and its mask."""
        say = self.context.say
        try:
            found = self.context.desk.preview(self.form.read(values), rows=PREVIEW_ROWS)
        except StudioError as error:
            words = " ".join(say(part) for part in (error.what, error.why, error.fix))
            hidden = gr.update(visible=False)
            return [note_card(words, "bad"), hidden, hidden, hidden, "", hidden, "", []]
        examples = [(text_card(row.text), mask_card(row.tokens, row.cut, say)) for row in found.rendered]
        cells = [[str(row.get(name, ""))[:CELL_CHARACTERS] for name in found.columns] for row in found.rows]
        table = gr.update(value={"headers": list(found.columns), "data": cells}, visible=True)
        numbers = [str(i + 1) for i in range(len(examples))]
        row = gr.update(choices=numbers, value="1" if numbers else None, visible=len(numbers) > 1)
        shown = gr.update(visible=bool(examples))
        first = examples[0] if examples else ("", "")
        verdict = self._verdict(found)
        return [verdict, table, row, shown, first[0], shown, first[1], examples]

    def _verdict(self, found: Any) -> str:
        """What the format is and why, or what is unclear about it; then rows that cannot be used."""
        say = self.context.say
        if found.refusal is not None:
            error = found.refusal
            return note_card(" ".join(say(part) for part in (error.what, error.why, error.fix)), "bad")
        reason = say(found.reason) if found.reason else ""
        words = [
            say("ui.dataset.format", format=found.format, reason=literal(reason)),
            *map(say, found.problems),
        ]
        return note_card(" ".join(words), "warn" if found.problems else "good")

    def pick(self, number: str, examples: list[tuple[str, str]]) -> tuple[str, str]:
        """Return the texts of another row."""
        position = int(number) - 1 if str(number).isdigit() else 0
        return examples[position] if 0 <= position < len(examples) else ("", "")

    def take_file(self, uploaded: str) -> str:
        """Copy an uploaded file into the workspace's data sets and return its new path."""
        source = Path(uploaded)
        if source.suffix.lower() not in FILE_TYPES:
            raise StudioError(
                text("ui.dataset.type", name=literal(source.name)),
                text("ui.dataset.type.why", types=", ".join(FILE_TYPES)),
                text("ui.dataset.type.fix"),
            )
        folder = self.context.workspace.datasets
        folder.mkdir(parents=True, exist_ok=True)
        stem = (
            "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in source.stem)[:80]
            or "data"
        )
        target = folder / f"{stem}{source.suffix.lower()}"
        staged = folder / f".{stem}.{os.getpid()}"
        shutil.copyfile(source, staged)
        replace_file(staged, target)
        return str(target)
