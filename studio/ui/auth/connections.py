"""Connections of strangers: none waits long in mid-request, and together they never take up all places of a port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 300
"""Places of a port, for those who are known and for strangers."""
STRANGERS = 200
"""So many of them for connections on which nobody has shown a cookie or a key; one more ends the oldest of these."""
HEAD_S = 10.0
"""A request's head has to be whole within this, of a stranger also its body; uvicorn itself would wait for ever."""
SAY_S = 60.0
KNOWN = "studio.known"
"""Set in a request's scope by the gate when it knows who asks."""


class Connection(H11Protocol):
    """uvicorn's own, with a clock for each request; `known` is kept as long as the connection is."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the first request, and end the oldest stranger where there is no room for another."""
        super().connection_made(transport)
        self._known = False
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        # Not the loop's time: uvloop's counts milliseconds, so that the newest of a crowd is as old as the oldest.
        self._turn = 1 + max((one._turn for one in others), default=0)
        self._clock: asyncio.TimerHandle | None = self.loop.call_later(HEAD_S, self._judge)
        strangers = [one for one in (*others, self) if not one.is_known()]
        if len(strangers) > STRANGERS:
            min(strangers, key=lambda one: one._turn).leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes; the clock runs from a request's first byte until it is whole."""
        super().data_received(data)
        self._set_clock()

    def on_response_complete(self) -> None:
        """Go on with what has come meanwhile."""
        super().on_response_complete()
        self._set_clock()

    def is_known(self) -> bool:
        """Return whether one of the requests on this connection came from a caller whom the gate knows."""
        self._known = self._known or bool(self.cycle and self.cycle.scope.get(KNOWN))
        return self._known

    def leave(self) -> None:
        """End the connection at once; its place is free before its socket is."""
        self.connections.discard(self)
        self.transport.abort()

    def _is_waiting(self) -> bool:
        if self.conn.their_state is h11.IDLE:  # between requests: for nothing, or for the rest of a head
            return self.cycle is None or bool(self.conn.trailing_data[0])
        return self.conn.their_state is h11.SEND_BODY and not self.is_known()

    def _judge(self) -> None:
        self._clock = None
        if self._is_waiting():
            self.leave()

    def _set_clock(self) -> None:
        if not self._is_waiting():
            self._stop_clock()
        elif self._clock is None:
            self._clock = self.loop.call_later(HEAD_S, self._judge)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


class AcceptErrors:
    """An event loop's exception handler: that no connection can be taken is said once a minute.

    asyncio tries 2,048 times in a row and prints a stack each time: 2.6 MB of log a second.
    """

    def __init__(self, say: Callable[[str], str]) -> None:
        """`say` returns the words of a text, without opening a file: there is none left to open."""
        self._say = say
        self._said_s = -SAY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle one failure."""
        if "accept" not in context.get("message", "") or not isinstance(context.get("exception"), OSError):
            return loop.default_exception_handler(context)
        if loop.time() - self._said_s >= SAY_S:
            self._said_s = loop.time()
            print(self._say("ui.serve.crowd"), flush=True)


def make_server(app: Callable, *, lifespan: str, farewell_s: int) -> uvicorn.Server:
    """Return a server that believes no header about where a request comes from; `farewell_s`: patience at its end."""
    config = uvicorn.Config(
        app,
        lifespan=lifespan,
        http=Connection,
        ws="none",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="critical",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=farewell_s,
    )
    return uvicorn.Server(config)
