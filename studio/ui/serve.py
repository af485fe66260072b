"""Serves the window on one local port: a splash page within a second, then the app on the same port."""

from __future__ import annotations

import gc
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from studio.core.i18n import load_catalogue, text
from studio.machine.settings import read_settings
from studio.ui.auth.owner import Keys
from studio.ui.shell.gradio_import import import_gradio
from studio.ui.splash import close_splash, likely_ports, open_splash

if TYPE_CHECKING:
    from studio.machine.workspace import Workspace
    from studio.services.desk import Desk
    from studio.ui.context import Context

POLL_S = 0.02
"""So long at most the splash page's server takes to stop, for which the app waits."""
ANNOUNCED_S = 1.5
"""Open pages ask once a second what is new; those that the browser slows down come back by Gradio's own means."""
ANSWER_S = 0.5
"""The answer to who asked for the end or for a new start reaches the page before its server is gone."""


def serve(
    desk_factory: Callable[[], Desk],
    workspace: Workspace,
    *,
    port: int | None,
    open_browser: bool,
    language: str,
    stopped: threading.Event | None = None,
    shared: Mapping[str, str] | None = None,
) -> int:
    """Serve the window until `stopped` is set; return the exit code 0.

    `port` None takes the first free one from FIRST_PORT. `language` is one of LANGUAGES; a choice that the person made
    in the window goes before it. `shared`: who is let in from outside at the start, role -> way (services/sharing.py).
    Raises StudioError when the port is taken, or when `shared` cannot be.
    """
    stopped = stopped or threading.Event()
    settings = read_settings(workspace)
    language = settings.get("language", language)
    ports = [port] if port else likely_ports(workspace)
    restarting = False
    splash = open_splash(ports, language, settings.get("theme", ""), workspace.front_end)
    port = splash.server_address[1]
    thread = threading.Thread(target=splash.serve_forever, kwargs={"poll_interval": POLL_S}, daemon=True)
    thread.start()
    keys = Keys(workspace.root, port)
    keys.write_address()
    print(load_catalogue(language).say(text("ui.serve.address", url=keys.url)), flush=True)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(keys.url,), daemon=True).start()
    # Looking again and again through what is only being made took 0.6 s of the start.
    gc.disable()
    try:
        # Gradio takes more than a second to import: the splash page is there meanwhile.
        import_gradio()
        from studio.ui.app import build, launch
        from studio.ui.auth.backends import Doors, LocalDoor
        from studio.ui.context import Context
        from studio.ui.listeners import Listeners

        context = Context(desk_factory(), workspace, keys, language)
        blocks = build(context)
        close_splash(splash)
        doors = Doors({port: LocalDoor(keys)})
        launch(blocks, context, doors)
        sharing = context.desk.sharing
        sharing.begin(Listeners(context, blocks, doors), shared or {})
        gc.freeze()  # Gradio's modules stay as long as the studio: no collection needs to look through them
        gc.enable()
        while not stopped.wait(0.5):
            keys.tell_address()
            _renew(context)
        time.sleep(ANSWER_S)
        # Open pages can hold the server for 5 s; the checkpoint must not wait for them.
        threading.Thread(target=_close, args=(blocks, context), daemon=True).start()
        context.desk.close()
        restarting = context.desk.restarting
    finally:
        gc.enable()
        close_splash(splash)
        if (
            not restarting
        ):  # the next process takes the port from there: the pages that are open ask at no other
            keys.address_file.unlink(missing_ok=True)
    return 0


def _renew(context: Context) -> None:
    """Make room for a new process where that is due: told first, so that open pages come back by themselves."""
    if not context.renewal.is_due():
        return
    context.renewal.announced = True
    time.sleep(ANNOUNCED_S)
    if context.renewal.is_due():
        context.desk.restart()
    else:  # somebody came
        context.renewal.announced = False


def _close(blocks: Any, context: Context) -> None:
    context.address.off()
    context.desk.sharing.leave()
    blocks.close(verbose=False)
