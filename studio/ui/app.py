"""The window as a whole: header, tabs, what happens when a page loads, and how it is launched."""

from __future__ import annotations

import contextvars
from pathlib import Path

import gradio as gr
import uvicorn
from gradio.context import Context as BuildContext
from starlette.middleware import Middleware

from studio.core.i18n import LANGUAGES
from studio.ui.api import Api
from studio.ui.asset_preload import FrontEnd
from studio.ui.auth_backends import Doors
from studio.ui.auth_middleware import UPLOAD_BYTES, Gate
from studio.ui.connections import CONNECTIONS, AcceptErrors, Connection
from studio.ui.context import Context
from studio.ui.draft_sync import OtherWindow
from studio.ui.estimate_card import RunCard
from studio.ui.form import Form, show_all
from studio.ui.gradio_faults import EXCEPTION_HANDLERS
from studio.ui.header import Header
from studio.ui.style import ICON, STYLE_SHEET, make_theme
from studio.ui.tabs.chat import ChatTab
from studio.ui.tabs.dataset import DatasetTab
from studio.ui.tabs.doctor import DoctorTab
from studio.ui.tabs.export import ExportTab
from studio.ui.tabs.home import HomeTab
from studio.ui.tabs.hyperparameters import HyperparametersTab
from studio.ui.tabs.model import ModelTab
from studio.ui.tabs.runs import RunsTab
from studio.ui.tabs.settings import SettingsTab
from studio.ui.tabs.training import TrainingTab

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
ASSETS = Path(__file__).resolve().parents[2] / "assets"
PAGE_SCRIPTS = (ASSETS / "page.js", ASSETS / "copies.js", ASSETS / "typed.js")
"""What a page loads once, in this order; each file is one function."""
SCREEN_STYLES = ASSETS / "style"


def build(context: Context) -> gr.Blocks:
    """Return the window in the context's language, not yet launched."""
    say = context.say
    # Ids count from nought, so that the same window built in another language has the same ids.
    BuildContext.id = 0
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
        card.bind(blocks.load, [tabs[name] for name in RUN_TABS], made["dataset"].verdict.change)
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
    return "() => {" + "".join(f"({file.read_text(encoding='utf-8')})();" for file in PAGE_SCRIPTS) + "}"


def fill_page(blocks: gr.Blocks, context: Context) -> None:
    """Put the draft into what a page is made of: an answer to its loading would replace what was typed meanwhile."""
    values = show_all(context.draft(), context.typed())
    for part in blocks.config["components"]:
        name = part["props"].get("elem_id")
        if name in values:
            part["props"]["value"] = values[name]


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


PRIVATE = ("gate.key", "api.key", "address.json", "share.json", "link.json", "settings.json", "runs", "logs")
"""What the server never serves, whatever a handler returns."""
QUEUE_REST_S = 0.08
"""How long Gradio's queue sleeps when nothing waits: a click waits half of it. Its own 1 ms on Linux wakes the server a
thousand times a second."""
KEEP_ALIVE_S = 360
"""How long an idle connection stays open. Browsers close theirs after 300 s; a server that does so first (uvicorn after
5) may close one in the moment in which a page sends on it, and the click is lost."""


def harden(server: uvicorn.Server, errors: AcceptErrors) -> None:
    """Give Gradio's running server what it cannot be launched with: our limits, and no word of what it is."""
    config = server.config
    config.timeout_keep_alive = KEEP_ALIVE_S
    config.http_protocol_class, config.limit_concurrency = Connection, CONNECTIONS
    config.encoded_headers = [one for one in config.encoded_headers if one[0].lower() != b"server"]
    # Its headers are made anew each second; the loop is its thread's own.
    server.server_state.default_headers = []
    loop = server.servers[0].get_loop()
    loop.call_soon_threadsafe(loop.set_exception_handler, errors)


def launch(blocks: gr.Blocks, context: Context, doors: Doors) -> None:
    """Serve `blocks` behind the gate on 127.0.0.1 and return; nothing is shared, recorded or reported."""
    blocks.queue(api_open=False, max_size=64, default_concurrency_limit=8)
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = QUEUE_REST_S
    gate = Middleware(Gate, doors=doors, language=lambda: context.language)
    front_end = Middleware(FrontEnd, file=context.workspace.front_end, theme=context.theme)
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
        blocked_paths=[str(context.workspace.root / name) for name in PRIVATE],
        max_file_size=UPLOAD_BYTES,
        state_session_capacity=100,
        app_kwargs={
            "middleware": [gate, front_end],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
            "exception_handlers": EXCEPTION_HANDLERS,
        },
        theme=make_theme(),
        css_paths=[STYLE_SHEET, *sorted(SCREEN_STYLES.glob("*.css"))],
        js=page_script(),
        favicon_path=str(ICON),
    )
    harden(blocks.server, AcceptErrors(context.say))
    # Gradio puts its own in front of what it is given: its CORS would answer foreign pages before the gate is asked.
    blocks.app.user_middleware.sort(key=lambda one: one.cls is not Gate)
    blocks.app.middleware_stack = blocks.app.build_middleware_stack()
    context.on_draft = lambda: fill_page(blocks, context)
    context.on_draft()
