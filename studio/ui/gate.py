"""The gate before every request: Host, Origin, one-time token or cookie, size of the body, and security headers."""

from __future__ import annotations

import hashlib
import hmac
import html
import json
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from studio.core.files import replace_file
from studio.core.text import load_catalogue, text

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SESSION_S = 7 * 24 * 3600
"""A browser stays known for a week, restarts of the studio included."""
BODY_BYTES = 8 * 1024**2
UPLOAD_BYTES = 2 * 1024**3
READY_PATH = "/ready"
"""Answers 204 to anyone: the splash page asks it whether the app is there."""
UPLOAD_PATH = "/gradio_api/upload"
OPEN_PATHS = ("/gradio_api/startup-events",)
"""Gradio asks itself for it at its start, without a cookie; it tells nothing."""
CLOSED_PATHS = (
    "/gradio_api/file=http",
    "/gradio_api/proxy",
    "/gradio_api/deep_link",
    "/gradio_api/runs",
    "/proxy=",
)
"""Routes of Gradio that reach out into the network or keep a history; the studio uses none of them."""
SECURITY_HEADERS = {
    # Gradio compiles the templates of its HTML component with Function(), hence 'unsafe-eval'.
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Keys:
    """The one-time token in the address, and the signed cookies of the browsers that showed one."""

    def __init__(self, folder: Path, port: int) -> None:
        """Read or make the signing key in `folder` (mode 0600), so that a restart keeps the open pages known."""
        self.port = port
        self.cookie_name = f"finetune_studio_{port}"
        self.address_file = folder / "address.json"
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._secret = _read_secret(folder / "gate.key")

    @property
    def url(self) -> str:
        """An address with a token that nobody has used yet."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def write_address(self) -> None:
        """Write {"url", "pid"} for a second start of the studio to open (mode 0600, replaced in one step)."""
        staged = self.address_file.with_suffix(f".{os.getpid()}")
        _write_private(staged, json.dumps({"url": self.url, "pid": os.getpid()}).encode())
        replace_file(staged, self.address_file)

    def redeem(self, token: str) -> str | None:
        """Return a cookie's value for the current token, which is spent by it; None for any other."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = secrets.token_urlsafe(24)
            self.write_address()
        return self._sign(f"{int(time.time())}.{secrets.token_urlsafe(16)}")

    def admits(self, cookies: Mapping[str, str]) -> bool:
        """Return whether the request's cookies hold one that this studio signed within SESSION_S."""
        body, _, _ = cookies.get(self.cookie_name, "").rpartition(".")
        issued, _, _ = body.partition(".")
        if not issued.isdigit() or not hmac.compare_digest(self._sign(body), cookies[self.cookie_name]):
            return False
        return 0 <= time.time() - int(issued) + 1 <= SESSION_S

    def _sign(self, body: str) -> str:
        return f"{body}.{hmac.new(self._secret, body.encode(), hashlib.sha256).hexdigest()}"


class Gate:
    """ASGI middleware; add it outermost: `Middleware(Gate, keys=keys, language=lambda: "en")`."""

    def __init__(self, app: Callable, keys: Keys, language: Callable[[], str]) -> None:
        self.app = app
        self.keys = keys
        self.language = language

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400 (Host), 403 (Origin, closed path), 413 (body) or 401 (not known)."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        refusal = refuse(scope["method"], scope["path"], headers, self.keys.port)
        if refusal:
            return await self._answer(send, refusal)
        if scope["path"] == READY_PATH:
            return await self._answer(send, 204)
        cookies = _read_cookies(headers.get("cookie", ""))
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if token and scope["path"] == "/" and scope["method"] == "GET":
            return await self._enter(send, token, cookies)
        if not (self.keys.admits(cookies) or (scope["path"] in OPEN_PATHS and scope["method"] == "GET")):
            return await self._answer(send, 401)
        await self.app(scope, _capped(receive, _limit_bytes(scope["path"])), _hardened(send))

    async def _enter(self, send: Send, token: str, cookies: Mapping[str, str]) -> None:
        value = self.keys.redeem(token)
        if value is None and not self.keys.admits(cookies):
            return await self._answer(send, 401)
        extra = {"location": "/", "cache-control": "no-store"}
        if value:
            extra["set-cookie"] = (
                f"{self.keys.cookie_name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_S}"
            )
        await self._answer(send, 303, extra)

    async def _answer(self, send: Send, status: int, extra: Mapping[str, str] | None = None) -> None:
        body = b"" if status in (204, 303) else refusal_page(status, self.language()).encode()
        headers = {"content-type": "text/html; charset=utf-8"} if body else {}
        headers |= {"content-length": str(len(body))} if status != 204 else {}
        headers |= extra or {}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await _hardened(send)({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})


def refuse(method: str, path: str, headers: Mapping[str, str], port: int) -> int:
    """Return the status that refuses a request before anyone asks who sends it; 0 when it may go on."""
    hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
    host = headers.get("host", "")
    if host not in hosts:
        return 400
    if method not in ("GET", "HEAD"):
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if origin not in (None, f"http://{host}") or site not in ("same-origin", "none"):
            return 403
    if path.startswith(CLOSED_PATHS):
        return 403
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > _limit_bytes(path):
        return 413
    return 0


def refusal_page(status: int, language: str) -> str:
    """Return the small page that says why a request was refused."""
    words = load_catalogue(language)
    what = html.escape(words.say(text(f"ui.gate.{status}")))
    fix = html.escape(words.say(text(f"ui.gate.{status}.fix")))
    return (
        f'<!doctype html><html lang="{words.language}"><meta charset="utf-8"><title>Finetune Studio</title>'
        "<style>body{font:16px/1.6 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.5rem;"
        "color:#1d2733;background:#f5f7f8}@media(prefers-color-scheme:dark){body{color:#e4eaf0;background:#10161c}}"
        f"</style><h1>Finetune Studio</h1><p>{what}</p><p>{fix}</p></html>"
    )


def _limit_bytes(path: str) -> int:
    return UPLOAD_BYTES if path.startswith(UPLOAD_PATH) else BODY_BYTES


def _read_cookies(header: str) -> dict[str, str]:
    jar = SimpleCookie()
    try:
        jar.load(header)
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


def _capped(receive: Receive, limit_bytes: int) -> Receive:
    """A body sent in chunks has no length to judge beforehand: past the limit the request ends as if cut off."""
    seen_bytes = 0

    async def receive_capped() -> MutableMapping[str, Any]:
        nonlocal seen_bytes
        message = await receive()
        seen_bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen_bytes > limit_bytes else message

    return receive_capped


def _hardened(send: Send) -> Send:
    async def send_hardened(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            ours = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await send(message)

    return send_hardened


def _read_secret(path: Path) -> bytes:
    if not path.exists() or path.stat().st_size != 32:
        path.unlink(missing_ok=True)
        _write_private(path, secrets.token_bytes(32))
    return path.read_bytes()


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
