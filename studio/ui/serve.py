"""Serves the window on one local port: a splash page within a second, then the app on the same port."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING

from studio.core.text import load_catalogue, text
from studio.host.settings import read_settings
from studio.ui.gate import Keys
from studio.ui.splash import close_splash, likely_ports, open_splash

if TYPE_CHECKING:
    from studio.desk.desk import Desk
    from studio.host.workspace import Workspace


def serve(
    desk_factory: Callable[[], Desk],
    workspace: Workspace,
    *,
    port: int | None,
    open_browser: bool,
    language: str,
    stopped: threading.Event | None = None,
) -> int:
    """Serve the window until `stopped` is set; return the exit code 0.

    `port` None takes the first free one from FIRST_PORT. `language` is one of LANGUAGES; a choice that the person made
    in the window goes before it. Raises StudioError when the port is taken.
    """
    stopped = stopped or threading.Event()
    language = read_settings(workspace).get("language", language)
    splash = open_splash([port] if port else likely_ports(workspace), language)
    port = splash.server_address[1]
    thread = threading.Thread(target=splash.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    keys = Keys(workspace.root, port)
    keys.write_address()
    print(load_catalogue(language).say(text("ui.serve.address", url=keys.url)), flush=True)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(keys.url,), daemon=True).start()
    try:
        # Gradio takes more than two seconds to import: the splash page is there meanwhile.
        from studio.ui.app import build, launch
        from studio.ui.context import Context

        context = Context(desk_factory(), workspace, keys, language)
        blocks = build(context)
        close_splash(splash)
        launch(blocks, context)
        while not stopped.wait(0.5):
            pass
        # Open pages can hold the server for 5 s; the checkpoint must not wait for them.
        threading.Thread(target=blocks.close, kwargs={"verbose": False}, daemon=True).start()
        context.desk.close()
    finally:
        close_splash(splash)
        keys.address_file.unlink(missing_ok=True)
    return 0
