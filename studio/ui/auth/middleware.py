"""The gate before every request: Host, Origin, who asks, what for, how much and how often; and security headers.

The role is the listening port's (backends.py). What passes carries `studio.role` and `studio.caller` in its scope
and no cookie, key or forwarding header any more: the app behind cannot leak what it never sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from studio.core.i18n import load_catalogue, text
from studio.core.json_file import parse_json
from studio.machine.peer_credentials import is_foreign
from studio.ui.auth.backends import Door, Doors, LocalDoor, PhraseDoor
from studio.ui.auth.connections import KNOWN
from studio.ui.auth.headers import SECURITY_HEADERS
from studio.ui.auth.login import LOGIN_PATH, LOGIN_POLICY, choose_words, login_page, read_phrase
from studio.ui.auth.owner import Keys, read_cookies
from studio.ui.auth.rate_limit import RateLimits, Sessions
from studio.ui.shell import routes
from studio.ui.shell.bad_requests import has_boundary, has_long_name
from studio.ui.templates import render

__all__ = ["Gate", "Keys", "READY_PATH", "ROLE", "CALLER", "UPLOAD_BYTES", "refuse"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ROLE, CALLER = "studio.role", "studio.caller"
"""Keys of a scope: `owner` or `viewer`, and the name of the browser or program that asks."""
BODY_BYTES = {"owner": 8 * 1024**2, "viewer": 64 * 1024}
UPLOAD_BYTES = 2 * 1024**3
READY_PATH = "/ready"
"""Answers 204 to anyone at this machine and to the owner from outside: pages ask it whether the app is there."""
PATHS = {"viewer": routes.WATCHING, "owner": (*routes.WORKING, READY_PATH)}
"""All that a page asks for; those with a slash or = at the end are beginnings."""
OUR_OWN = ("cookie", "authorization", "forwarded", "via")
"""Headers that end here, beside all that begin with x-: a relay's word for who asks counts for nothing."""


class Gate:
    """ASGI middleware; add it outermost: `Middleware(Gate, doors=doors, language=lambda: "en")`."""

    def __init__(
        self,
        app: Callable,
        doors: Doors,
        language: Callable[[], str],
        limits: RateLimits | None = None,
        has_room: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`has_room` tells whether the page with this session may ask for one more event."""
        self.app = app
        self.doors = doors
        self.language = language
        self.limits = limits or RateLimits()
        self.has_room = has_room
        self.sessions = Sessions()
        self.told = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400 (Host), 403 (Origin, path, session), 405, 413, 415, 429 or 401."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        self.doors.loop = asyncio.get_running_loop()
        door = self.doors.get((scope.get("server") or ("", 0))[1])
        headers = _read_headers(scope["headers"])
        origin = door.origin_of(headers.get("host", "")) if door else ""
        if not origin:
            return await self._refuse(send, 400)
        refusal = refuse(scope["method"], scope["path"], headers, origin, door)
        if refusal:
            return await self._refuse(send, refusal)
        caller = door.identify(read_cookies(headers.get("cookie", "")), headers.get("authorization", ""))
        scope[KNOWN] = bool(caller)
        address = (scope.get("client") or ("",))[0]
        # By door: who floods the link's port must not slow down the owner at this machine.
        stranger = "crowd" if door.shared else "stranger"
        allowed = door.role if caller else stranger if door.login else "here"
        counted = f"{door.role} {caller}" if caller else f"{allowed} {door.role} {address}"
        if not self.limits.enter(counted, allowed):
            return await self._refuse(send, 429, {"retry-after": "5"})
        try:
            if not await self._welcome(scope, receive, send, door, origin, caller, headers, address):
                await self._pass(scope, receive, send, door, caller, headers)
        finally:
            self.limits.leave(counted)

    async def _welcome(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        door: Door,
        origin: str,
        caller: str,
        headers: Mapping[str, str],
        address: str,
    ) -> bool:
        """Answer what concerns coming in; return whether the request is answered by it."""
        method, path = scope["method"], scope["path"]
        if path == READY_PATH and (caller or not door.login):
            await _answer(send, 204)
            return True
        if isinstance(door, PhraseDoor):
            if path == LOGIN_PATH and method == "POST":
                await self._log_in(receive, send, door, origin, headers, address)
            elif path == LOGIN_PATH:
                await _answer(send, 303, b"", {"location": "/"})
            elif not caller:
                await self._show_login(send, 401, headers)
            else:
                return False
            return True
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if token and path == "/" and method == "GET":
            await self._redeem(scope, send, door, origin, token, caller, headers)
        elif not caller and not (path == routes.STARTUP and method == "GET"):
            await self._refuse(send, 401)
        else:
            return False
        return True

    async def _redeem(
        self,
        scope: Scope,
        send: Send,
        door: LocalDoor,
        origin: str,
        token: str,
        caller: str,
        headers: Mapping[str, str],
    ) -> None:
        # A browser is started with the address, which other accounts read in the list of processes before it has even
        # asked. The server behind would believe the header about who the other end is.
        foreign = "x-forwarded-for" in headers or is_foreign(scope.get("client"), scope.get("server"))
        if foreign and not caller:
            if not self.told:  # once: whoever tries again and again must not fill the log
                self.told = True
                print(load_catalogue(self.language()).say(text("ui.gate.account")), flush=True)
            return await self._refuse(send, 401)
        value = None if foreign else door.redeem(token)
        if value is None and not caller:
            return await self._refuse(send, 401)
        cookie = {"set-cookie": _bake(door, origin, value)} if value else {}
        await _answer(send, 303, b"", {"location": "/"} | cookie)

    async def _log_in(
        self,
        receive: Receive,
        send: Send,
        door: PhraseDoor,
        origin: str,
        headers: Mapping[str, str],
        address: str,
    ) -> None:
        phrase = await read_phrase(receive)
        admission = door.admit(phrase, address, headers.get("user-agent", ""))
        if admission.cookie:
            cookie = _bake(door, origin, admission.cookie)
            return await _answer(send, 303, b"", {"location": "/", "set-cookie": cookie})
        await self._show_login(send, 429 if admission.wait_s else 401, headers, admission.wait_s, wrong=True)

    async def _show_login(
        self, send: Send, status: int, headers: Mapping[str, str], wait_s: float = 0.0, wrong: bool = False
    ) -> None:
        words = choose_words(headers.get("accept-language", ""), self.language())
        elsewhere = headers.get("sec-fetch-site", "") in ("cross-site", "same-site")
        page = login_page(words, wait_s=wait_s, wrong=wrong, again=elsewhere and not wrong).encode()
        extra = {"content-security-policy": LOGIN_POLICY} | (
            {"retry-after": f"{wait_s:.0f}"} if wait_s else {}
        )
        await _answer(send, status, page, extra)

    async def _pass(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        door: Door,
        caller: str,
        headers: Mapping[str, str],
    ) -> None:
        path, limit_bytes = scope["path"], _limit_bytes(door.role, scope["path"])
        receive = _capped(receive, limit_bytes)
        session = _session_of_address(scope)
        if scope["method"] == "POST" and not path.startswith(routes.UPLOAD):
            body = await _read_all(receive)
            if body is None:
                return await self._refuse(send, 413)
            receive = _replayed(body, receive)
            session = _session_of_body(body)
        if session is None:
            return await self._refuse(send, 400)
        if session and caller and not self.sessions.claim(session, caller):
            return await self._refuse(send, 403)
        if path == routes.JOIN and session and self.has_room and not await self.has_room(session):
            return await self._refuse(send, 429, {"retry-after": "5"})
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if name.decode("latin-1") not in OUR_OWN and not name.startswith(b"x-")
        ]
        if door.origin_of(headers["host"]).startswith("https:"):
            kept.append((b"x-forwarded-proto", b"https"))  # Gradio makes its page's addresses from it
        inner = {**scope, "headers": kept, ROLE: door.role if caller else "", CALLER: caller}
        send = _hardened(send, keep=path.startswith(routes.ASSETS))
        if door.login and path.startswith(routes.STREAMS):
            cookies = read_cookies(headers.get("cookie", ""))
            receive, send = _cut_off(receive, send, lambda: not door.identify(cookies, ""))
        await self.app(inner, receive, send)

    async def _refuse(self, send: Send, status: int, extra: Mapping[str, str] | None = None) -> None:
        await _answer(send, status, refusal_page(status, self.language()).encode(), extra or {})


def refuse(method: str, path: str, headers: Mapping[str, str], origin: str, door: Door) -> int:
    """Return the status that refuses a request before anyone asks who sends it; 0 when it may go on.

    `origin` is the one that belongs to the request's Host.
    """
    if method not in ("GET", "HEAD", "POST"):
        return 405
    own = (READY_PATH, routes.STARTUP) if not door.login else (LOGIN_PATH,)
    # A link on another page may lead here; that page, be it of another port of this host, may ask for nothing else.
    elsewhere = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if elsewhere and (method == "POST" or path not in ("/", *own)):
        return 403
    if method == "POST":
        given = headers.get("origin")
        if given not in (None, origin):
            return 403
        login = door.login and path == LOGIN_PATH
        if login and given is None:  # every browser names its page's origin when it sends a form
            return 403
        kinds = "application/x-www-form-urlencoded" if login else "application/json"
        kinds = "multipart/form-data" if path.startswith(routes.UPLOAD) else kinds
        if headers.get("content-type", "").partition(";")[0].strip().lower() != kinds:
            return 415
        if kinds.startswith("multipart") and not has_boundary(headers["content-type"]):
            return 415
    if path not in ("/", *own) and not _is_open(path, door.role):
        return 403
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > _limit_bytes(door.role, path):
        return 413
    return 0


def refusal_page(status: int, language: str) -> str:
    """Return the small page that says why a request was refused."""
    words = load_catalogue(language)
    what, fix = words.say(text(f"ui.gate.{status}")), words.say(text(f"ui.gate.{status}.fix"))
    return render("auth/refusal.html", language=words.language, what=what, fix=fix)


def _is_open(path: str, role: str) -> bool:
    if "\0" in path or ".." in path.replace("\\", "/").split("/") or has_long_name(path):
        return False
    if path.startswith(routes.FILE) and path[len(routes.FILE) :].lower().startswith("http"):
        return False  # Gradio would fetch it
    if path.startswith(routes.CALL_V2):
        return False
    return any(path == one or (one[-1] in "/=" and path.startswith(one)) for one in PATHS[role])


def _limit_bytes(role: str, path: str) -> int:
    return UPLOAD_BYTES if path.startswith(routes.UPLOAD) else BODY_BYTES[role]


def _read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers by lower-case name; a Host or Origin that comes twice counts as a foreign one."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        twice = key in found and key in ("host", "origin", "content-type", "content-length")
        found[key] = "?" if twice else value.decode("latin-1")
    return found


def _session_of_address(scope: Scope) -> str | None:
    """Return the page's session that a GET names; "" where it names none, None where it names several."""
    if scope["path"].startswith(routes.STREAMS[1]):
        return scope["path"][len(routes.STREAMS[1]) :].strip("/")
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    named = query.get("session_hash", [""])
    return named[0] if len(named) == 1 else None  # the app would take another one than we look at


def _session_of_body(body: bytes) -> str | None:
    """Return the page's session that a JSON body names, "" where it names none; None for what is no JSON object."""
    try:
        data = parse_json(body or b"{}")
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    session = data.get("session_hash") or ""
    return session if isinstance(session, str) else None


def _bake(door: Door, origin: str, value: str) -> str:
    secure = "; Secure" if origin.startswith("https:") else ""
    return (
        f"{door.cookie_name(origin)}={value}; HttpOnly; SameSite=Strict; Path=/; "
        f"Max-Age={max(0, int(door.lasts_s()))}{secure}"
    )


async def _answer(send: Send, status: int, body: bytes = b"", extra: Mapping[str, str] | None = None) -> None:
    headers = {"content-type": "text/html; charset=utf-8"} if body else {}
    headers |= {"content-length": str(len(body))} if status != 204 else {}
    headers |= extra or {}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    hardened = _hardened(send)
    await hardened({"type": "http.response.start", "status": status, "headers": raw})
    await hardened({"type": "http.response.body", "body": body})


async def _read_all(receive: Receive) -> bytes | None:
    """Return a request's body; None when it is cut off, for its length or by its sender."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def receive_replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_replayed


def _capped(receive: Receive, limit_bytes: int) -> Receive:
    """A body sent in chunks has no length to judge beforehand: past the limit the request ends as if cut off."""
    seen_bytes = 0

    async def receive_capped() -> Message:
        nonlocal seen_bytes
        message = await receive()
        seen_bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen_bytes > limit_bytes else message

    return receive_capped


def _cut_off(receive: Receive, send: Send, gone: Callable[[], bool]) -> tuple[Receive, Send]:
    """A stream lasts for minutes: it ends with the first word after its caller was disconnected."""
    over = False

    async def receive_while_known() -> Message:
        return {"type": "http.disconnect"} if over or gone() else await receive()

    async def send_while_known(message: Message) -> None:
        nonlocal over
        if over:
            return
        over = message["type"] == "http.response.body" and gone()
        await send({"type": "http.response.body", "body": b""} if over else message)

    return receive_while_known, send_while_known


def _hardened(send: Send, *, keep: bool = False) -> Send:
    """Add the security headers, and that nothing is to be kept by a browser but the page's own files (`keep`)."""

    async def send_hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = [
                (name, value)
                for name, value in message.get("headers", [])
                if not name.lower().startswith(b"access-control-")
            ]
            names = {name.decode("latin-1").lower() for name, _ in given}
            ours = SECURITY_HEADERS | ({} if keep else {"cache-control": "no-store"})
            given += [(name.encode(), value.encode()) for name, value in ours.items() if name not in names]
            message = {**message, "headers": given}
        await send(message)

    return send_hardened
