"""How Gradio serves a window: nothing shared, recorded or reported, our gate before all that Gradio puts in front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware

from studio.ui.auth.connections import CONNECTIONS, AcceptErrors, Connection
from studio.ui.shell.bad_requests import EXCEPTION_HANDLERS
from studio.ui.style import ICON, make_theme, style_sheets

QUEUE_REST_S = 0.08
"""How long Gradio's queue sleeps when nothing waits: a click waits half of it. Its own 1 ms on Linux wakes the server a
thousand times a second."""
KEEP_ALIVE_S = 360
"""How long an idle connection stays open. Browsers close theirs after 300 s; a server that does so first (uvicorn after
5) may close one in the moment in which a page sends on it, and the click is lost."""
NEVER = ("show_error", "pwa", "run_history", "ssr_mode", "mcp_server", "enable_monitoring")
"""What Gradio can do and neither the owner's window nor the guests' does."""


def _keep_quiet() -> dict[str, Any]:
    """Return what both windows are served with; made anew each time, as Gradio writes into what it is given."""
    lists = {"footer_links": [], "allowed_paths": []}
    return dict.fromkeys(NEVER, False) | lists | {"favicon_path": str(ICON), "css_paths": style_sheets()}


def _without_documents() -> dict[str, Any]:
    return {"docs_url": None, "redoc_url": None, "openapi_url": None}


def _answer_well() -> dict[str, Any]:
    """Return what Gradio's own app is made with: no documents of its routes, and a refusal where it has a fault."""
    return _without_documents() | {"exception_handlers": EXCEPTION_HANDLERS}


def serve_alone(
    blocks: gr.Blocks,
    *,
    port: int,
    gate: Middleware,
    others: Sequence[Middleware],
    blocked: Sequence[Path],
    most_bytes: int,
    script: str,
    errors: AcceptErrors,
) -> None:
    """Serve the owner's window on 127.0.0.1 with `gate` outermost, and return.

    `blocked`: files that are never served, whatever a handler returns. `most_bytes`: of an upload. `script`: what a
    page calls when it is there. `errors` hears what a connection stumbles over.
    """
    blocks.queue(api_open=False, max_size=64, default_concurrency_limit=8)
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = QUEUE_REST_S
    blocks.launch(
        server_name="127.0.0.1",
        server_port=port,
        inbrowser=False,
        prevent_thread_lock=True,
        quiet=True,
        strict_cors=True,
        share=False,
        blocked_paths=[str(path) for path in blocked],
        max_file_size=most_bytes,
        state_session_capacity=100,
        app_kwargs={"middleware": [gate, *others], **_answer_well()},
        theme=make_theme(),
        js=script,
        **_keep_quiet(),
    )
    harden(blocks.server, errors)
    # Gradio puts its own in front of what it is given: its CORS would answer foreign pages before the gate is asked.
    blocks.app.user_middleware.sort(key=lambda one: one.cls is not gate.cls)
    blocks.app.middleware_stack = blocks.app.build_middleware_stack()


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


def make_app(blocks: gr.Blocks, blocked: Path) -> FastAPI:
    """Return the guests' window as an app of its own, with no gate before it; nothing below `blocked` is served."""
    blocks.queue(api_open=False, max_size=32, default_concurrency_limit=4)
    return gr.mount_gradio_app(
        FastAPI(**_without_documents()),
        blocks,
        path="/",
        app_kwargs=_answer_well(),
        blocked_paths=[str(blocked)],
        max_file_size=1,
        theme=make_theme(),
        **_keep_quiet(),
    )
