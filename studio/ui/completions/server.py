"""A port of its own for the address: its key, who may come in, and its server's life."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import threading
import time

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue, text
from studio.machine.addresses import bind_port
from studio.ui.auth.connections import KNOWN, AcceptErrors, make_server
from studio.ui.auth.rate_limit import RateLimits
from studio.ui.completions.app import Completions, Receive, Scope, Send, send_json
from studio.ui.completions.refusal import HttpRefusal

PORTS = range(8100, 8200)
LOCAL = "127.0.0.1"
FAREWELL_S = 1
PATIENCE_S = 20.0
KEY_SIGNS = 16
"""Of a key that somebody chose, at least."""


class KeyGate:
    """ASGI app: lets in whoever shows the key, behind the right name of this machine where only it is listened to."""

    def __init__(self, app: Completions, key: str, host: str, port: int) -> None:
        self.app, self._key = app, key.encode()
        self._hosts = {f"{name}:{port}" for name in (LOCAL, "localhost")} if host == LOCAL else set()
        self._limits = RateLimits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it: 403 for another Host, 401 without the key, 429 for too many of these."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._hosts and headers.get(b"host", b"").decode("latin-1") not in self._hosts:
            return await self._refuse(scope, send, HttpRefusal(403, text("answers.host")))
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        known = kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)
        scope[KNOWN] = known
        if known:
            return await self.app(scope, receive, send)
        caller = (scope.get("client") or ("",))[0]
        if not self._limits.enter(caller, "stranger"):
            return await self._refuse(scope, send, HttpRefusal(429, text("ui.gate.429"), code="rate_limit"))
        try:
            await self._refuse(scope, send, HttpRefusal(401, text("answers.key"), code="invalid_api_key"))
        finally:
            self._limits.leave(caller)

    async def _refuse(self, scope: Scope, send: Send, refusal: HttpRefusal) -> None:
        await send_json(send, refusal.status, refusal.body(self.app.choose_words(scope)))


class AddressServer:
    """An address that is open, on a thread and an event loop of its own."""

    def __init__(
        self, app: Completions, *, host: str = LOCAL, port: int | None = None, key: str = ""
    ) -> None:
        """Listen on `port` of `host`, else on the first free one of PORTS, and return when it answers.

        Raises StudioError when the port is taken, `host` is none of this machine's, or the key is too short.
        """
        if key and (len(key) < KEY_SIGNS or not key.isascii() or not key.isprintable() or " " in key):
            raise StudioError(
                text("serve.key", least=KEY_SIGNS), text("serve.key.why"), text("serve.key.fix")
            )
        self.key = key or secrets.token_urlsafe(32)
        self.host = host
        found = bind_port(host, range(0) if port else PORTS, port)
        if found is None:
            what = text("serve.port", host=host, port=port or f"{PORTS.start}-{PORTS.stop - 1}")
            raise StudioError(what, text("serve.port.why"), text("serve.port.fix"))
        self.port = found.getsockname()[1]
        self._server = make_server(
            KeyGate(app, self.key, host, self.port), lifespan="off", farewell_s=FAREWELL_S
        )
        self._thread = threading.Thread(target=self._serve, args=(found, app), name="address", daemon=True)
        self._thread.start()
        until_s = time.monotonic() + PATIENCE_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)
        if not self._server.started:
            self.close()
            raise StudioError(text("share.silent"), text("share.silent.why"), text("share.silent.fix"))

    @property
    def url(self) -> str:
        """What a client is given as its base."""
        return f"http://{self.host}:{self.port}/v1"

    def close(self) -> None:
        """Close the port and what is connected to it; waits for that a little."""
        self._server.should_exit = True
        self._thread.join(FAREWELL_S + 2)

    def _serve(self, found: socket.socket, app: Completions) -> None:
        async def run() -> None:
            asyncio.get_running_loop().set_exception_handler(AcceptErrors(load_catalogue(app.language()).say))
            await self._server.serve([found])

        asyncio.run(run())
