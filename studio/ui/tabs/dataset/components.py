"""The Dataset screen's components: where data is brought, how it is read, and the views of what was found."""

from __future__ import annotations

import gradio as gr

from studio.data.split_discovery import CODE, PACKED, SUFFIXES
from studio.data.templates.catalogue import list_names
from studio.ui.cards import heading, lead_line, note_card
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.shell.scripts import read_script

FILE_TYPES = [*SUFFIXES, *CODE, *PACKED, ".zip"]
FIRST = ("data.format", "data.max_length", "data.fill", "data.validation_share")
PREPARE = (
    "data.duplicates",
    "data.overlap",
    "data.too_long",
    "data.max_rows",
    "data.shuffle",
    "data.filters",
    "data.mix",
)
VIEWS = ("rows", "chat", "seen", "learned", "lengths", "problems")


class DatasetParts:
    """Every part with its elem_id; the handlers are those of tab.py."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        say = context.say
        with gr.Row():
            with gr.Column(scale=4, min_width=340, elem_classes=["sheet"]):
                gr.HTML(heading(say("ui.dataset.title"), say("ui.dataset.lead")))
                self._make_source()
            with gr.Column(scale=6, min_width=540, elem_classes=["sheet"]):
                self.verdict = gr.HTML(note_card(say("ui.dataset.none")), elem_id="dataset-verdict")
                self.progress = gr.HTML("", elem_id="dataset-progress")
                self.questions = gr.HTML("", elem_id="dataset-questions")
                # Hidden by the style sheet until there are rows: what is mounted later may miss what was sent before.
                with gr.Column(elem_id="dataset-look"):
                    self._make_views()
                self.said = gr.HTML(
                    {},
                    html_template="<i></i>",
                    js_on_load=read_script("tabs/dataset/script.js"),
                    elem_id="dataset-said",
                    elem_classes=["unseen"],
                )
            # Last: what a file is and what it asks must be seen without scrolling past the settings.
            with gr.Column(scale=6, min_width=540, elem_id="dataset-settings", elem_classes=["sheet"]):
                self._make_settings()

    def _make_source(self) -> None:
        say = self.context.say
        self.source = self.form.field("data.source")
        self.upload = gr.File(
            label=say("ui.dataset.upload"),
            file_count="single",
            height=96,
            elem_id="dataset-upload",
        )
        self.button = gr.Button(
            say("ui.dataset.preview"), elem_id="dataset-preview", size="sm", variant="primary"
        )

    def _make_settings(self) -> None:
        say, form = self.context.say, self.form
        form.fields(FIRST)
        with gr.Accordion(say("ui.dataset.prepare"), open=False, elem_id="dataset-prepare"):
            gr.HTML(lead_line(say("ui.dataset.prepare.lead")))
            form.fields(PREPARE)
            self.prepared = gr.HTML("", elem_id="dataset-prepared")
        with gr.Accordion(say("ui.form.advanced"), open=False, elem_id="dataset-advanced"):
            rest = form.section(["data"], ["basic", "common", "advanced"])
            form.fields([path for path in rest if path not in ("data.accept_bad_rows", "data.template")])
            own = (say("ui.dataset.template.own"), "")
            form.field(
                "data.template", choices=[own, *list_names()], allow_custom_value=True, filterable=True
            )

    def _make_views(self) -> None:
        """The sub tabs; chat, seen and learned show the same example."""
        say = self.context.say
        with gr.Row(elem_id="dataset-picker", elem_classes=["picker"]):
            arrow = {"size": "sm", "scale": 0, "min_width": 44}
            self.back = gr.Button("‹", elem_id="dataset-previous", **arrow)
            self.row = gr.Radio(
                choices=[], show_label=False, label=say("ui.dataset.example"), elem_id="dataset-example",
                elem_classes=["inline"], container=False,
            )  # fmt: skip
            self.forth = gr.Button("›", elem_id="dataset-next", **arrow)
        with gr.Tabs(elem_id="dataset-views"):
            for name in VIEWS:
                with gr.Tab(say(f"ui.dataset.tab.{name}"), id=name, elem_id=f"dataset-tab-{name}"):
                    getattr(self, f"_make_{name}")()

    def _make_rows(self) -> None:
        say = self.context.say
        gr.HTML(lead_line(say("ui.dataset.rows.lead")))
        self.table = gr.HTML("", elem_id="dataset-rows")
        with gr.Row(elem_classes=["toolbar"]):
            self.save = gr.Button(
                say("ui.dataset.mapping.save"),
                elem_id="dataset-save-mapping",
                size="sm",
                scale=0,
                min_width=240,
            )
            self.saved = gr.HTML("", elem_id="dataset-saved")

    def _make_chat(self) -> None:
        self.chat = gr.HTML("", elem_id="dataset-chat")

    def _make_seen(self) -> None:
        gr.HTML(lead_line(self.context.say("ui.dataset.seen.lead")))
        self.seen = gr.HTML("", elem_id="dataset-rendered")

    def _make_learned(self) -> None:
        gr.HTML(lead_line(self.context.say("ui.dataset.learned.lead")))
        self.learned = gr.HTML("", elem_id="dataset-mask")
        self.packed = gr.HTML("", elem_id="dataset-packed")

    def _make_lengths(self) -> None:
        self.lengths = gr.HTML("", elem_id="dataset-lengths")

    def _make_problems(self) -> None:
        self.problems = gr.HTML("", elem_id="dataset-problems")
        self.form.field("data.accept_bad_rows")
        with gr.Row():
            self.download = gr.DownloadButton(
                self.context.say("ui.dataset.quarantine"),
                elem_id="dataset-quarantine",
                size="sm",
                scale=0,
                min_width=240,
                visible=False,
            )
