"""Serves the window on one local port: a splash page within a second, then the app on the same port."""

from __future__ import annotations

import html
import json
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.text import LANGUAGES, load_catalogue, text
from studio.ui.gate import SECURITY_HEADERS, Keys

if TYPE_CHECKING:
    from studio.desk.desk import Desk
    from studio.host.workspace import Workspace

FIRST_PORT = 7860
PORTS = 100
ASSETS = Path(__file__).resolve().parents[2] / "assets"


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


def read_settings(workspace: Workspace) -> dict:
    """Return the person's settings; a file that cannot be read counts as none, and what it names wrongly is dropped."""
    try:
        settings = json.loads(workspace.settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(settings, dict):
        return {}
    if settings.get("language") not in LANGUAGES:
        settings.pop("language", None)
    return settings


def likely_ports(workspace: Workspace) -> list[int]:
    """Return the ports to try: first that of a studio that died here, because its pages are still open and ask there."""
    ports = list(range(FIRST_PORT, FIRST_PORT + PORTS))
    try:
        url = json.loads((workspace.root / "address.json").read_text(encoding="utf-8"))["url"]
        last = urlsplit(url).port
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ports
    return [last, *ports] if last else ports


def open_splash(ports: Sequence[int], language: str) -> ThreadingHTTPServer:
    """Return a server of the splash page, bound to the first free one of `ports`, not yet serving.

    Raises StudioError when none is free.
    """
    page = splash_page(language).encode()

    class Splash(BaseHTTPRequestHandler):
        """Answers every request of an allowed Host with the splash page, status 503."""

        def do_GET(self) -> None:
            """Answer; the page itself asks again until the app answers."""
            own = self.server.server_address[1]
            allowed = self.headers.get("Host", "") in (f"127.0.0.1:{own}", f"localhost:{own}")
            self.send_response(503 if allowed else 400)
            for name, value in SECURITY_HEADERS.items():
                self.send_header(name, value)
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if allowed:
                self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Keep the console clean."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # On Windows address reuse would let two servers share a port.
        allow_reuse_address = sys.platform != "win32"

    for candidate in ports:
        # With address reuse a bind succeeds beside a server on 0.0.0.0, so ask for an answer too.
        if answers(candidate):
            continue
        try:
            return Server(("127.0.0.1", candidate), Splash)
        except OSError:
            continue
    wanted = str(ports[0]) if len(ports) == 1 else f"{min(ports)}-{max(ports)}"
    raise StudioError(text("ui.serve.taken", port=wanted), text("ui.serve.taken.why"), text("ui.serve.taken.fix"))


def close_splash(splash: ThreadingHTTPServer) -> None:
    """End the splash server and free its port; doing so twice is harmless."""
    splash.shutdown()
    splash.server_close()


def answers(port: int) -> bool:
    """Return whether something listens on the loopback `port`."""
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def splash_page(language: str) -> str:
    """Return the page shown while the app is loaded."""
    words = load_catalogue(language)
    blanks = {
        "LANGUAGE": words.language,
        "TITLE": words.say(text("ui.splash.title")),
        "NOTE": words.say(text("ui.splash.note")),
    }
    page = (ASSETS / "splash.html").read_text(encoding="utf-8")
    for name, value in blanks.items():
        page = page.replace("{{" + name + "}}", html.escape(value))
    return page
