"""The page shown while the app is loaded, and the port that both are served on; standard library only."""

from __future__ import annotations

import html
import json
import socket
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.text import load_catalogue, text
from studio.ui.gate import SECURITY_HEADERS

if TYPE_CHECKING:
    from studio.host.workspace import Workspace

FIRST_PORT = 7860
PORTS = 100
PAGE = Path(__file__).resolve().parents[2] / "assets" / "splash.html"


def likely_ports(workspace: Workspace) -> list[int]:
    """Return the ports to try: first that of a studio that died here, because its pages still ask there."""
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


def splash_page(language: str) -> str:
    """Return the page shown while the app is loaded."""
    words = load_catalogue(language)
    blanks = {
        "LANGUAGE": words.language,
        "TITLE": words.say(text("ui.splash.title")),
        "NOTE": words.say(text("ui.splash.note")),
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, value in blanks.items():
        page = page.replace("{{" + name + "}}", html.escape(value))
    return page
