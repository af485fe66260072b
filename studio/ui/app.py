"""The window as a whole: header, tabs, what happens when a page loads, and how it is launched."""

from __future__ import annotations

import contextvars

import gradio as gr
from starlette.middleware import Middleware

from studio.core.i18n import LANGUAGES
from studio.ui.api import Api
from studio.ui.auth.backends import Doors
from studio.ui.auth.connections import AcceptErrors
from studio.ui.auth.middleware import UPLOAD_BYTES, Gate
from studio.ui.completions.window import WindowCompletions
from studio.ui.context import Context
from studio.ui.draft_sync import OtherWindow
from studio.ui.estimate_card.card import RunCard
from studio.ui.form import Form, show_all
from studio.ui.header.strip import Header
from studio.ui.shell.asset_preload import FrontEnd
from studio.ui.shell.blocks import count_from_nought, fill_values, take_words
from studio.ui.shell.launch import serve_alone
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.chat.tab import ChatTab
from studio.ui.tabs.dataset.tab import DatasetTab
from studio.ui.tabs.doctor.tab import DoctorTab
from studio.ui.tabs.export.tab import ExportTab
from studio.ui.tabs.home.tab import HomeTab
from studio.ui.tabs.hyperparameters.tab import HyperparametersTab
from studio.ui.tabs.model.tab import ModelTab
from studio.ui.tabs.runs.tab import RunsTab
from studio.ui.tabs.settings.tab import SettingsTab
from studio.ui.tabs.training.tab import TrainingTab

TABS = (
    "home",
    "model",
    "dataset",
    "hyperparameters",
    "training",
    "chat",
    "export",
    "runs",
    "doctor",
    "settings",
)
RUN_TABS = ("model", "dataset", "hyperparameters", "training")
PAGE_SCRIPTS = ("shell/page.js", "shell/clipboard.js", "shell/keep_input.js")
"""What a page loads once, in this order; each file is one function."""


def build(context: Context) -> gr.Blocks:
    """Return the window in the context's language, not yet launched."""
    say = context.say
    count_from_nought()
    with gr.Blocks(
        title="Finetune Studio", analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
    ) as blocks:
        Api(context)  # first, so that no handler takes the name of an endpoint
        frame = Header(context)
        form = Form(context.words, context.draft(), context.typed())
        makers = {
            "home": lambda: HomeTab(context),
            "model": lambda: ModelTab(context, form),
            "dataset": lambda: DatasetTab(context, form),
            "hyperparameters": lambda: HyperparametersTab(context, form),
            "training": lambda: TrainingTab(context, form),
            "chat": lambda: ChatTab(context),
            "export": lambda: ExportTab(context),
            "runs": lambda: RunsTab(context),
            "doctor": lambda: DoctorTab(context),
            "settings": lambda: SettingsTab(context),
        }
        tabs, made = {}, {}
        with gr.Row(elem_id="stage"):
            with gr.Column(scale=7, min_width=320, elem_id="work"):
                with gr.Tabs(elem_id="tabs", overflow_behavior="wrap"):
                    for name in TABS:
                        with gr.Tab(say(f"ui.tab.{name}"), id=name, elem_id=f"tab-{name}") as tabs[name]:
                            made[name] = makers[name]()
            # Shown by the style sheet beside the four tabs of a run alone.
            with gr.Column(scale=3, min_width=280, elem_id="run-card"):
                card = RunCard(context, form)
        training = made["training"]
        training.make_shared()
        OtherWindow(context, form)
        frame.bind(blocks.load, training.stop)
        more = made["dataset"].verdict.change, made["hyperparameters"].rewards.section.change
        card.bind(blocks.load, [tabs[name] for name in RUN_TABS], *more)
        made["home"].bind(tabs["home"], blocks.load, form, training)
        made["model"].bind(tabs["model"])
        made["dataset"].bind(tabs["dataset"])
        made["hyperparameters"].bind(made["dataset"].verdict.change)
        training.bind(tabs["training"])
        made["chat"].bind(tabs["chat"])
        made["export"].bind(tabs["export"])
        made["runs"].bind(tabs["runs"], form, training)
        made["doctor"].bind(tabs["doctor"])
        made["settings"].bind(tabs["settings"], lambda tag: change_language(context, blocks, tag))
        bind_page(blocks, context, made["model"], training)
    return blocks


def bind_page(blocks: gr.Blocks, context: Context, model: ModelTab, training: TrainingTab) -> None:
    """Show the models and the run on every page load; the draft is in the page from the start (fill_page)."""
    context.on(blocks.load, model.choices, [model.source], [model.source])
    model.show_card(blocks.load)


def page_script() -> str:
    """Return the function that a page calls when it is there."""
    return "() => {" + "".join(f"({read_script(name)})();" for name in PAGE_SCRIPTS) + "}"


def fill_page(blocks: gr.Blocks, context: Context) -> None:
    """Put the draft into what a page is made of: an answer to its loading would replace what was typed meanwhile."""
    fill_values(blocks, show_all(context.draft(), context.typed()))


def change_language(context: Context, blocks: gr.Blocks, tag: str) -> None:
    """Let the window speak `tag`: handlers at once, pages from their next load."""
    # Gradio's drop-down reports one choice twice, and only one window can be built at a time.
    with context.turn:
        if tag not in LANGUAGES or tag == context.language:
            return
        context.speak(tag)
        # An event's thread carries the page it came from; a window is built outside of any.
        take_words(blocks, contextvars.Context().run(build, context))


PRIVATE = ("gate.key", "api.key", "address.json", "share.json", "link.json", "settings.json", "runs", "logs")
"""What the server never serves, whatever a handler returns."""


def launch(blocks: gr.Blocks, context: Context, doors: Doors) -> None:
    """Serve `blocks` behind the gate on 127.0.0.1 and return; nothing is shared, recorded or reported."""
    serve_alone(
        blocks,
        port=context.keys.port,
        gate=Middleware(Gate, doors=doors, language=lambda: context.language),
        others=[
            Middleware(WindowCompletions, context=context),
            Middleware(FrontEnd, file=context.workspace.front_end, theme=context.theme),
        ],
        blocked=[context.workspace.root / name for name in PRIVATE],
        most_bytes=UPLOAD_BYTES,
        script=page_script(),
        errors=AcceptErrors(context.say),
    )
    context.on_draft = lambda: fill_page(blocks, context)
    context.on_draft()
