"""Gradio's own scripts and styles: found without importing it, shown to the browser early, kept by it for good.
And the page's colours, which Gradio takes from the address.

Their names carry a hash of what is in them, so that a browser may keep each one for ever. Importing Gradio takes two
seconds, in which the browser has nothing to do: the splash page lets it fetch and compile what the window's pages
asked for last time. Standard library only.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.json_file import read_json
from studio.ui.shell.routes import JOIN

KEPT = "public, max-age=31536000, immutable"
ASSET = re.compile(r"/assets/([A-Za-z0-9_.-]+\.(js|css))")
KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
NAMES = 400
"""More names than that are not remembered: the window's pages ask for about 120."""
THEME = "__theme"
"""In the address it tells Gradio the colours."""


def find_front_end() -> Path | None:
    """Return the folder of Gradio's front end, without importing Gradio; None where it is not installed."""
    spec = importlib.util.find_spec("gradio")
    folder = Path(spec.origin).parent / "templates" / "frontend" if spec and spec.origin else None
    return folder if folder and folder.is_dir() else None


def read_asset(folder: Path | None, path: str) -> tuple[bytes, str] | None:
    """Return (content, type) of the script or style that the address `path` names; None for anything else."""
    match = ASSET.fullmatch(path)
    if folder is None or match is None:
        return None
    with suppress(OSError):
        return (folder / "assets" / match[1]).read_bytes(), KINDS[match[2]]
    return None


def read_names(folder: Path | None, file: Path) -> list[str]:
    """Return the names in `file` that this Gradio has, else those that its first page names itself."""
    if folder is None:
        return []
    try:
        names = read_json(file)
    except StudioError:
        names = []
    known = [name for name in names if isinstance(name, str) and ASSET.fullmatch(f"/assets/{name}")]
    known = [name for name in known[:NAMES] if (folder / "assets" / name).is_file()]
    if known:
        return known
    with suppress(OSError):
        page = (folder / "index.html").read_text(encoding="utf-8")
        return list(dict.fromkeys(match[1] for match in ASSET.finditer(page)))
    return []


def preload_links(names: Iterable[str]) -> str:
    """Return the HTML that lets a browser fetch `names` now; scripts are compiled as well."""
    how = {"js": 'rel="modulepreload"', "css": 'rel="preload" as="style"'}
    return "".join(f'<link {how[name.rpartition(".")[2]]} href="/assets/{name}">' for name in names)


class FrontEnd:
    """ASGI middleware: lets browsers keep Gradio's files, and notes in `file` which ones a page is made of.

    `theme` tells the chosen colours: light, dark, "" for the system's. A page that is asked for with others is sent to
    the address with these, so that it is drawn in them from the beginning.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], *, file: Path, theme: Callable[[], str] = lambda: ""
    ) -> None:
        self.app = app
        self.file = file
        self.theme = theme
        self.folder = find_front_end()
        self.noted = set(read_names(self.folder, file))
        self.asked: set[str] = set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Callable, send: Callable) -> None:
        """Answer through the app."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        if path == "/" and scope["method"] == "GET":
            place = _turn(scope.get("query_string", b"").decode("latin-1"), self.theme())
            if place is not None:
                headers = [(b"location", place.encode("latin-1")), (b"content-length", b"0")]
                headers.append((b"cache-control", b"no-store"))
                await send({"type": "http.response.start", "status": 303, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        match = ASSET.fullmatch(path)
        if match is None:
            if path == JOIN and not self.asked <= self.noted:
                self._note()
            await self.app(scope, receive, send)
            return
        self.asked.add(match[1])

        async def send_kept(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] in (200, 304):
                message = {**message, "headers": [*message["headers"], (b"cache-control", KEPT.encode())]}
            await send(message)

        await self.app(scope, receive, send_kept)

    def _note(self) -> None:
        self.noted |= self.asked
        with suppress(OSError):  # a full disk: the next start is a little slower
            write_json(self.file, sorted(self.noted)[:NAMES])


def _turn(query: str, theme: str) -> str | None:
    """Return the address of the window in the colours `theme`; None where `query` asks for them already."""
    asked = parse_qsl(query, keep_blank_values=True)
    if [value for name, value in asked if name == THEME] == ([theme] if theme else []):
        return None
    kept = [(name, value) for name, value in asked if name != THEME] + ([(THEME, theme)] if theme else [])
    return "/?" + urlencode(kept) if kept else "/"
