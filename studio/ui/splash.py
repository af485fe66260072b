"""The page shown while the app is loaded, and the port that both are served on; standard library only."""

from __future__ import annotations

import html
import socket
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue, text
from studio.core.json_file import read_json
from studio.ui.auth.headers import SECURITY_HEADERS
from studio.ui.shell.asset_preload import KEPT, find_front_end, preload_links, read_asset, read_names

if TYPE_CHECKING:
    from studio.machine.workspace import Workspace

FIRST_PORT = 7860
PORTS = 100
LEAVING = "/leaving"
"""Answered when the splash makes room for the app: the page waits for that instead of asking again and again."""
LEAVING_S = 60.0
PAGE = Path(__file__).resolve().parents[2] / "assets" / "splash.html"


def likely_ports(workspace: Workspace) -> list[int]:
    """Return the ports to try: first that of a studio that died or restarts, because its pages still ask there."""
    ports = list(range(FIRST_PORT, FIRST_PORT + PORTS))
    try:
        url = read_json(workspace.root / "address.json")["url"]
        last = urlsplit(url).port
    except (StudioError, ValueError, KeyError, TypeError, AttributeError):
        return ports
    return [last, *ports] if last else ports


def open_splash(
    ports: Sequence[int], language: str, theme: str = "", front_end: Path = Path()
) -> ThreadingHTTPServer:
    """Return a server of the splash page, bound to the first free one of `ports`, not yet serving.

    `front_end` is the file of the names that FrontEnd noted. Raises StudioError when no port is free.
    """
    folder = find_front_end()
    page = splash_page(language, theme, read_names(folder, front_end)).encode()

    leaving = threading.Event()

    class Splash(BaseHTTPRequestHandler):
        """Answers every request of an allowed Host with the splash page, status 503, but for Gradio's own files."""

        protocol_version = "HTTP/1.1"  # one connection for many files
        timeout = 10.0  # a request that does not become whole holds a thread and a file

        def do_GET(self) -> None:
            """Answer; the page itself asks again until the app answers."""
            own = self.server.server_address[1]
            allowed = self.headers.get("Host", "") in (f"127.0.0.1:{own}", f"localhost:{own}")
            if allowed and self.path == LEAVING:
                leaving.wait(LEAVING_S)
            asset = read_asset(folder, self.path) if allowed else None
            body, kind = asset or (page if allowed else b"", "text/html; charset=utf-8")
            self.send_response(200 if asset else 503 if allowed else 400)
            for name, value in SECURITY_HEADERS.items():
                self.send_header(name, value)
            self.send_header("Cache-Control", KEPT if asset else "no-store")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if not asset:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the console clean."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # On Windows address reuse would let two servers share a port.
        allow_reuse_address = sys.platform != "win32"

        def shutdown(self) -> None:
            """Let those go who wait for it, then stop."""
            leaving.set()
            super().shutdown()

    for candidate in ports:
        # With address reuse a bind succeeds beside a server on 0.0.0.0, so ask for an answer too.
        if answers(candidate):
            continue
        try:
            return Server(("127.0.0.1", candidate), Splash)
        except OSError:
            continue
    wanted = str(ports[0]) if len(ports) == 1 else f"{min(ports)}-{max(ports)}"
    raise StudioError(
        text("ui.serve.taken", port=wanted), text("ui.serve.taken.why"), text("ui.serve.taken.fix")
    )


def close_splash(splash: ThreadingHTTPServer) -> None:
    """End the splash server and free its port; doing so twice is harmless."""
    splash.shutdown()
    splash.server_close()


def answers(port: int) -> bool:
    """Return whether something listens on the loopback `port`."""
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def splash_page(language: str, theme: str = "", names: Sequence[str] = ()) -> str:
    """Return the page shown while the app is loaded.

    `theme` is light, dark or "" for the system's; `names` are files of Gradio that the browser is to fetch meanwhile.
    """
    words = load_catalogue(language)
    blanks = {
        "LANGUAGE": words.language,
        "THEME": theme,
        "TITLE": words.say(text("ui.splash.title")),
        "NOTE": words.say(text("ui.splash.note")),
    }
    page = PAGE.read_text(encoding="utf-8").replace("{{PRELOAD}}", preload_links(names))
    for name, value in blanks.items():
        page = page.replace("{{" + name + "}}", html.escape(value))
    return page
