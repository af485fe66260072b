"""The window as a whole: header, tabs, what happens when a page loads, and how it is launched."""

from __future__ import annotations

import contextvars
from typing import Any

import gradio as gr
from gradio.context import Context as BuildContext
from starlette.middleware import Middleware

from studio.core.errors import StudioError
from studio.core.recipe import Recipe
from studio.core.text import LANGUAGES
from studio.ui.cards import chip, machine_words
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.gate import UPLOAD_BYTES, Gate
from studio.ui.style import ICON, STYLE_SHEET, make_theme
from studio.ui.tabs.chat import ChatTab
from studio.ui.tabs.dataset import DatasetTab
from studio.ui.tabs.doctor import DoctorTab
from studio.ui.tabs.export import ExportTab
from studio.ui.tabs.hyperparameters import HyperparametersTab
from studio.ui.tabs.model import ModelTab
from studio.ui.tabs.training import TrainingTab

LANGUAGE_NAMES = {"en": "English", "zh-CN": "简体中文"}
# Ctrl+Enter starts a run while the Training tab is open.
KEYS = """() => {
  document.addEventListener("keydown", (event) => {
    const start = document.getElementById("run-start");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && start?.offsetParent) start.click();
  });
}"""

# Gradio serves every page as English; screen readers choose their voice by it.
TELL_LANGUAGE = "document.documentElement.lang = element.querySelector('h1').lang;"


def build(context: Context) -> gr.Blocks:
    """Return the window in the context's language, not yet launched."""
    say = context.say
    # Ids count from nought, so that the same window built in another language has the same ids.
    BuildContext.id = 0
    with gr.Blocks(
        title="Finetune Studio", analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
    ) as blocks:
        with gr.Row(elem_id="header"):
            gr.HTML(brand(say("ui.brand"), context.language), js_on_load=TELL_LANGUAGE, elem_id="brand")
            machine = gr.HTML("", elem_id="machine")
            run_chip = gr.HTML(chip(None, "", say), elem_id="run-chip")
            language = gr.Dropdown(
                choices=[(LANGUAGE_NAMES[tag], tag) for tag in LANGUAGES],
                value=context.language,
                show_label=False,
                label=say("ui.language"),
                elem_id="language",
                filterable=False,
                interactive=True,
                scale=0,
                min_width=130,
            )
        form = Form(context.words, context.draft())
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab(say("ui.tab.model"), id="model", elem_id="tab-model"):
                model = ModelTab(context, form)
            with gr.Tab(say("ui.tab.dataset"), id="dataset", elem_id="tab-dataset") as dataset_tab:
                dataset = DatasetTab(context, form)
            with gr.Tab(say("ui.tab.hyperparameters"), id="hyperparameters", elem_id="tab-hyperparameters"):
                settings = HyperparametersTab(context, form)
            with gr.Tab(say("ui.tab.training"), id="training", elem_id="tab-training"):
                training = TrainingTab(context, form)
            with gr.Tab(say("ui.tab.chat"), id="chat", elem_id="tab-chat") as chat_tab:
                chat = ChatTab(context)
            with gr.Tab(say("ui.tab.export"), id="export", elem_id="tab-export") as export_tab:
                export = ExportTab(context)
            with gr.Tab(say("ui.tab.doctor"), id="doctor", elem_id="tab-doctor") as doctor_tab:
                doctor = DoctorTab(context)
        training.make_shared()
        model.bind()
        dataset.bind(dataset_tab)
        settings.bind()
        training.bind(run_chip)
        chat.bind(chat_tab)
        export.bind(export_tab)
        doctor.bind(doctor_tab)
        bind_page(blocks, context, form, model, training, machine)
        changed = context.on(language.input, lambda tag: change_language(context, blocks, tag), [language])
        changed.then(None, js="() => location.reload()", api_visibility="private")
    return blocks


def bind_page(
    blocks: gr.Blocks, context: Context, form: Form, model: ModelTab, training: TrainingTab, machine: gr.HTML
) -> None:
    """Show the draft, the models, the machine and the run on every page load; keep the draft on every edit."""
    components = list(form.components.values())

    def show_draft() -> list[Any]:
        return form.show(context.draft())

    def show_machine() -> str:
        return machine_words(context.desk.health.machine(), context.say)

    def keep(*values: Any) -> None:
        try:
            recipe: Recipe = form.read(values)
        except StudioError:
            return  # half-typed: the last whole form stays the draft
        context.keep_draft(recipe)

    shown = context.on(blocks.load, show_draft, [], components)
    context.on(shown.then, model.choices, [model.source], [model.source])
    model.show_card(shown.then)
    context.on(blocks.load, show_machine, [], [machine])
    context.on(blocks.load, training.tick, [training.watched], training.shown)
    edits = [component.input for component in components]
    context.on(
        lambda *args, **options: gr.on(edits, *args, **options), keep, components, trigger_mode="always_last"
    )


def change_language(context: Context, blocks: gr.Blocks, tag: str) -> None:
    """Let the window speak `tag`: handlers at once, pages from their next load."""
    # Gradio's drop-down reports one choice twice, and only one window can be built at a time.
    with context.turn:
        if tag not in LANGUAGES or tag == context.language:
            return
        context.speak(tag)
        # An event's thread carries the page it came from; a window is built outside of any.
        twin = contextvars.Context().run(build, context)
        twin.theme, twin.css, twin.js, twin.head = blocks.theme, blocks.css, blocks.js, blocks.head
        # Same components in the same order, other words: only what a page is made of is replaced, the server's state
        # stays. The ids stay the first window's: every update of an open page counts Gradio's own counter on.
        pairs = zip(blocks.config["components"], twin.get_config_file()["components"], strict=True)
        blocks.config = blocks.config | {"components": [new | {"id": old["id"]} for old, new in pairs]}


KEEP_ALIVE_S = 360
"""How long an idle connection stays open. Browsers close theirs after 300 s; a server that does so first (uvicorn after
5) may close one in the moment in which a page sends on it, and the click is lost."""


def launch(blocks: gr.Blocks, context: Context) -> None:
    """Serve `blocks` behind the gate on 127.0.0.1 and return; nothing is shared, recorded or reported."""
    blocks.queue(api_open=False, max_size=64, default_concurrency_limit=8)
    gate = Middleware(Gate, keys=context.keys, language=lambda: context.language)
    blocks.launch(
        server_name="127.0.0.1",
        server_port=context.keys.port,
        inbrowser=False,
        prevent_thread_lock=True,
        quiet=True,
        show_error=False,
        pwa=False,
        strict_cors=True,
        run_history=False,
        share=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        footer_links=[],
        allowed_paths=[],
        blocked_paths=[
            str(context.workspace.root / name) for name in ("gate.key", "address.json", "runs", "logs")
        ],
        max_file_size=UPLOAD_BYTES,
        state_session_capacity=100,
        app_kwargs={"middleware": [gate], "docs_url": None, "redoc_url": None, "openapi_url": None},
        theme=make_theme(),
        css_paths=[STYLE_SHEET],
        js=KEYS,
        favicon_path=str(ICON),
    )
    blocks.server.config.timeout_keep_alive = KEEP_ALIVE_S


def brand(name: str, language: str) -> str:
    """Return the studio's mark and name, with the language that the page is in."""
    return f"<h1 lang={language}>{ICON.read_text(encoding='utf-8')}<span>{name}</span></h1>"
