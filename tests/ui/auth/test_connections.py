"""Half-finished requests: they end by themselves, and whoever opens many of them keeps nobody else out."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
import uvicorn
from uvicorn.server import ServerState

from studio.ui.auth import connections
from studio.ui.auth.connections import KNOWN, AcceptErrors, Connection
from studio.ui.shell.launch import harden
from tests.each_time import every
from tests.ui.launched_studio import LaunchedStudio, get

HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "
WHOLE = HALF + b"no\r\n\r\n"
COOKIE = HALF + b"no\r\nCookie: known\r\n\r\n"


async def app(scope, receive, send):
    """Answer `here` once the body is read; who sends a cookie is known."""
    scope[KNOWN] = any(name == b"cookie" for name, _ in scope["headers"])
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"here"})


@contextmanager
def serve(**settings) -> Iterator[tuple[uvicorn.Server, Callable[[bytes], socket.socket]]]:
    """A server in a thread, and a function that connects to it and sends."""
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_level="critical", port=0, **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    opened: list[socket.socket] = []

    def ask(data: bytes) -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        opened[-1].sendall(data)
        return opened[-1]

    try:
        yield server, ask
    finally:
        for one in opened:
            one.close()
        server.should_exit = True
        thread.join(10)


def read(connection: socket.socket) -> bytes:
    """A whole answer; less when the other end has closed, b"" for nothing."""
    said = b""
    try:
        while not said.endswith(b"here") and (part := connection.recv(4096)):
            said += part
    except ConnectionResetError:
        pass
    return said


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        connection.settimeout(5)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.5)


@pytest.mark.parametrize(
    "data",
    every(2, [b"", HALF, WHOLE + HALF, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"]),
    ids=["nothing", "half a head", "a second half", "half a body"],
)
def test_a_request_that_does_not_become_whole_ends(short, data):
    with serve() as (_, ask):
        asked, began = ask(data), time.monotonic()
        while read(asked):
            pass
        assert 0.3 < time.monotonic() - began < 4


def test_a_head_that_comes_in_drops_ends_too(short):
    with serve() as (_, ask):
        asked = ask(HALF)
        with pytest.raises(OSError):
            for _ in range(40):
                time.sleep(0.1)
                asked.sendall(b"x")


@pytest.mark.computing
def test_whole_requests_and_the_slow_ones_of_who_is_known_go_on(short):
    with serve() as (_, ask):
        idle = ask(WHOLE)
        assert read(idle).endswith(b"here")
        upload = ask(b"POST / HTTP/1.1\r\nHost: x\r\nCookie: known\r\nContent-Length: 3\r\n\r\n")
        for part in b"abc":
            time.sleep(0.4)
            upload.sendall(bytes([part]))
        assert read(upload).endswith(b"here")
        assert is_open(idle), "between two requests uvicorn's own time counts"
        idle.sendall(WHOLE)
        assert read(idle).endswith(b"here")


def test_strangers_do_not_take_up_all_places(monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS", 5)
    with serve(limit_concurrency=8) as (server, ask):
        known = ask(COOKIE)
        assert read(known).endswith(b"here")
        crowd = [ask(HALF if i % 2 else WHOLE) for i in range(60)]
        for one in crowd[:40]:
            while read(one):
                pass
        known.sendall(COOKIE)
        assert b"200 OK" in read(known), "who is known keeps the place"
        assert b"200 OK" in read(ask(COOKIE)), "and gets a further one"
        assert b"200 OK" in read(ask(WHOLE)), "and so does a new guest"
        assert len(server.server_state.connections) <= 8


class StillLoop:
    """A loop whose clock stands still, as uvloop's does for a millisecond."""

    def time(self) -> float:
        return 0.0

    def call_later(self, after_s: float, ask: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(after_s, ask, (), self)

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass


class Socket(asyncio.Transport):
    """The other end of nobody."""

    def abort(self) -> None:
        pass


def test_of_strangers_of_one_moment_the_first_goes(monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS", 5)
    config, state = uvicorn.Config(app, http=Connection, lifespan="off"), ServerState()
    config.load()
    come: list[Connection] = []
    for _ in range(60):
        come.append(Connection(config, state, {}, StillLoop()))
        come[-1].connection_made(Socket())
        assert state.connections == set(come[-5:])


def test_refused_connections_are_said_once_a_minute(capfd):
    loop = asyncio.new_event_loop()
    errors = AcceptErrors(str)
    full = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(24, "Too many open files"),
    }
    for _ in range(3000):
        errors(loop, full)
    said = capfd.readouterr()
    assert said.out.count("\n") == 1 and not said.err
    loop.call_exception_handler({"message": "another", "exception": ValueError("x")})
    errors(loop, {"message": "another", "exception": ValueError("x")})
    loop.close()


def test_gradios_server_gets_our_limits_and_says_not_what_it_is():
    config = uvicorn.Config(app, lifespan="off", log_level="critical", port=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        harden(server, AcceptErrors(str))
        time.sleep(1.3)  # its headers are made anew each second
        with socket.create_connection(("127.0.0.1", port), timeout=5) as asked:
            asked.sendall(WHOLE)
            answer = read(asked).lower()
        assert b"200 ok" in answer and b"server:" not in answer and b"uvicorn" not in answer
        assert config.http_protocol_class is Connection
    finally:
        server.should_exit = True
        thread.join(10)


def names_server(port: int) -> bool:
    """Whether an answer says what program it is from."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as asked:
        asked.sendall(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        return b"uvicorn" in read(asked)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
def test_1100_half_requests_with_1024_files(tmp_path):
    """At the window's own port: the page answers during the attack, and the log stays short."""
    studio = LaunchedStudio(tmp_path / "workspace")
    attack = None
    try:
        while names_server(studio.port):  # Gradio's launch looks at its own page before it returns
            time.sleep(0.2)
        for one in psutil.Process(studio.process.pid).children(recursive=True):
            one.rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))
        words = f"""
import socket, sys, time
crowd = []
for _ in range(1100):
    try:
        crowd.append(socket.create_connection(("127.0.0.1", {studio.port}), timeout=5))
        crowd[-1].sendall({HALF!r})
    except OSError:
        pass
print(len(crowd), flush=True)
time.sleep(600)
"""
        attack = subprocess.Popen(
            ["prlimit", "--nofile=4096", sys.executable, "-c", words], stdout=subprocess.PIPE
        )
        assert int(attack.stdout.readline()) > 1000
        for _ in range(20):
            assert get(studio.port, "/") == 401
            time.sleep(0.5)
        open_files = max(one.num_fds() for one in psutil.Process(studio.process.pid).children(recursive=True))
        assert open_files < 500
        assert (tmp_path / "workspace" / "logs" / "studio.log").stat().st_size < 100_000
    finally:
        if attack:
            attack.kill()
            attack.wait()
            attack.stdout.close()
        studio.close()
