"""Opens and closes the ports for those who come from outside: guests get an app of their own, the owner the window."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import gradio as gr
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from studio.core.errors import StudioError
from studio.core.i18n import LANGUAGES, text
from studio.machine.addresses import bind_port
from studio.ui.auth.backends import Doors, PhraseDoor
from studio.ui.auth.connections import AcceptErrors, make_server
from studio.ui.auth.login import choose_words
from studio.ui.auth.middleware import Gate, Receive, Scope, Send
from studio.ui.context import Context
from studio.ui.guest.page import Quota, build_guest
from studio.ui.shell.launch import make_app
from studio.ui.shell.unheard import has_room

PORTS = range(7960, 8060)
HOSTS = {"tunnel": "127.0.0.1", "lan": "0.0.0.0"}
"""A tunnel's program is at this machine; nobody else reaches the port past it."""
PATIENCE_S = 20.0
FAREWELL_S = 1
"""How long an answer that is on its way may still take when the port closes."""


@dataclass(slots=True)
class Listener:
    """One open port: its server, and what ends once the server has."""

    server: uvicorn.Server
    ended: threading.Thread | Future

    @property
    def over(self) -> bool:
        """Whether the server has ended, or never came up."""
        return not self.ended.is_alive() if isinstance(self.ended, threading.Thread) else self.ended.done()


class Listeners:
    """The window's side of studio.services.sharing: `doors` are those of the owner's app `blocks`."""

    def __init__(self, context: Context, blocks: gr.Blocks, doors: Doors) -> None:
        self.context, self.blocks, self.doors = context, blocks, doors
        self._open: dict[str, Listener] = {}

    def start(self, role: str, way: str, port: int | None) -> int:
        """Listen for `role` on `port`, else on a free one; return the port.

        Raises StudioError when none is free, or when nothing answers there after PATIENCE_S.
        """
        found = bind_port(HOSTS[way], PORTS, port)
        if found is None:
            raise _refuse("port")
        port = found.getsockname()[1]
        door = PhraseDoor(self.context.desk.sharing, role, port)
        if role == "owner":
            self.doors[port] = door
            listener = self._serve_owner(found)
        else:
            listener = self._serve_guests(found, Doors({port: door}))
        self._open[role] = listener
        until_s = time.monotonic() + PATIENCE_S
        while not listener.server.started:
            if listener.over or time.monotonic() > until_s:
                self.stop(role)
                found.close()
                raise _refuse("silent")
            time.sleep(0.01)
        return port

    def stop(self, role: str) -> None:
        """Close the port of `role` and what is connected to it; waits for that FAREWELL_S and little more."""
        listener = self._open.pop(role, None)
        if listener is None:
            return
        listener.server.should_exit = True
        if isinstance(listener.ended, threading.Thread):
            listener.ended.join(FAREWELL_S + 2)
        else:
            for port in [port for port, door in self.doors.items() if isinstance(door, PhraseDoor)]:
                del self.doors[port]

    def _serve_owner(self, found: socket.socket) -> Listener:
        """Another port of the same app, in the event loop that it lives in: its queue belongs to that loop."""
        server = make_server(self.blocks.app, lifespan="off", farewell_s=FAREWELL_S)
        return Listener(server, asyncio.run_coroutine_threadsafe(server.serve([found]), self.doors.loop))

    def _serve_guests(self, found: socket.socket, doors: Doors) -> Listener:
        """An app and an event loop of their own: what guests do holds up nobody else's page."""
        server = make_server(make_guest_app(self.context, doors), lifespan="on", farewell_s=FAREWELL_S)
        thread = threading.Thread(target=server.run, args=([found],), name="guests", daemon=True)
        thread.start()
        return Listener(server, thread)


def _refuse(kind: str) -> StudioError:
    return StudioError(text(f"share.{kind}"), text(f"share.{kind}.why"), text(f"share.{kind}.fix"))


def make_guest_app(context: Context, doors: Doors) -> Starlette:
    """Return the guests' apps behind their gate: one for each language, as a page of Gradio speaks one only.

    Which one answers says Accept-Language, which a browser sends along with every request alike.
    """
    quota = Quota()
    pages = {language: _make_speaking_page(context, language, quota) for language in LANGUAGES}
    apps = {language: make_app(blocks, context.workspace.root) for language, blocks in pages.items()}

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        accepted = dict(scope["headers"]).get(b"accept-language", b"").decode("latin-1")
        await apps[choose_words(accepted, context.language).language](scope, receive, send)

    @asynccontextmanager
    async def live(_: Starlette) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(AcceptErrors(context.say))
        async with AsyncExitStack() as stack:
            for app in apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    async def may_ask(session: str) -> bool:
        return all([await has_room(blocks, session) for blocks in pages.values()])

    gate = Middleware(Gate, doors=doors, language=lambda: context.language, has_room=may_ask)
    return Starlette(routes=[Mount("/", app=choose)], middleware=[gate], lifespan=live)


def _make_speaking_page(context: Context, language: str, quota: Quota) -> gr.Blocks:
    """Return the guests' page in one language, not yet served."""
    # One window is built at a time, and outside of any page's thread.
    with context.turn:
        speaking = Context(context.desk, context.workspace, context.keys, language)
        return contextvars.Context().run(build_guest, speaking, quota)
