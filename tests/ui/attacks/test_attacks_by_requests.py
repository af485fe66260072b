"""Requests that no browser sends, bodies that are none, and what comes from elsewhere: all of it is refused."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.shared_studio import JOIN, JSON
from tests.ui.attacks.attack import (
    check_the_studio,
    is_held,
    patiently,
    say,
    secrets_of,
    statuses,
)

pytestmark = pytest.mark.long  # they mostly wait for answers


def raw_heads(port: int, host: str, cookie: str) -> Iterator[bytes]:
    """Yield requests that no browser sends: two lengths, wrong chunks, line ends, controls, other protocols."""
    head = f"Host: {host}\r\nCookie: {cookie}\r\n".encode()
    inner = b"GET /gradio_api/info HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    post = b"POST /gradio_api/queue/join HTTP/1.1\r\n" + head + b"Content-Type: application/json\r\n"
    yield post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
    yield (
        post + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n" % (5 + len(inner)) + inner
    )
    for coding in (
        b"xchunked",
        b" chunked, identity",
        b"chunked, chunked",
        b"gzip, chunked",
        b"\x0bchunked",
        b"chunKed\x00",
    ):
        yield post + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n" + inner
    for length in (
        b"-1",
        b"+2",
        b"0x2",
        b"2, 3",
        b"9" * 40,
        b"",
        b" 2 2",
        b"2\r\nContent-Length: 9",
        b"\xb2",
    ):
        yield post + b"Content-Length: " + length + b"\r\n\r\n{}" + inner
    for size in (b"ffffffffffffffffff", b"-1", b'2;ext="\r\n"', b"0x2", b"2 ", b"g", b"\r\n"):
        yield post + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{}\r\n0\r\n\r\n"
    for line in (
        b"GET /config HTTP/9.9",
        b"GET /config HTTP/0.9",
        b"GET /config",
        b"GET  /config HTTP/1.1",
        b"get /config HTTP/1.1",
        b"GET http://evil.example/config HTTP/1.1",
        b"GET //evil.example/config HTTP/1.1",
        b"GET /con\x00fig HTTP/1.1",
        b"GET /\xff\xfe HTTP/1.1",
        b"CONNECT 127.0.0.1:22 HTTP/1.1",
        b"TRACE / HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"DEBUG / HTTP/1.1",
        b"PUT /config HTTP/1.1",
        b"DELETE /config HTTP/1.1",
        b"PROPFIND / HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET /config?" + b"a=b&" * 30000 + b" HTTP/1.1",
        b"A" * 70000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /%00 HTTP/1.1",
        b"GET /config#x HTTP/1.1",
        b"GET /config;x HTTP/1.1",
        b"GET /./config HTTP/1.1",
    ):
        yield line + b"\r\n" + head + b"\r\n"
    for extra in (
        b"Host: evil.example\r\n",
        b"X: " + b"a" * 200_000 + b"\r\n",
        b"".join(b"X%d: 1\r\n" % i for i in range(3000)),
        b" folded: 1\r\n",
        b"Bad Name: 1\r\n",
        b"X:\x00\r\n",
        b"X: a\nOrigin: http://evil.example\r\n",
        b": empty\r\n",
        b"Cookie: " + b"a=1; " * 4000 + b"\r\n",
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade\r\n",
        b"Expect: 100-continue\r\n",
        b"Expect: 200-maybe\r\n",
        b"Connection: close, host\r\n",
    ):
        yield b"GET /gradio_api/run/x HTTP/1.1\r\n" + head + extra + b"\r\n"


def test_requests_that_no_browser_sends(ways, judge):
    for name, _, inside in ways[:3]:
        for words in raw_heads(inside.port, inside.host, inside.cookie if name.startswith("viewer") else ""):
            heard = say(inside.port, words)
            numbers = statuses(heard)
            # A request that hides in another one's body must not be answered with a page; h11 closes after a bad one.
            fine = all(number < 500 or number == 503 for number in numbers) and b'"dependencies"' not in heard
            smuggled = any(number == 200 for number in numbers[1:])
            judge(
                "raw",
                (name, words[:90], numbers),
                (fine or words.startswith(b"GET /config")) and not smuggled,
            )
        assert patiently(inside, "/config")[0] == 200


def test_websockets(ways, judge):
    key = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    key += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    for name, _, inside in ways[:3]:
        for path in (
            "/",
            "/queue/join",
            "/gradio_api/queue/join",
            "/gradio_api/queue/data",
            "/gradio_api/heartbeat/x",
            "/ws",
        ):
            for origin in ("http://evil.example", f"{inside.scheme}://{inside.host}"):
                head = f"GET {path} HTTP/1.1\r\nHost: {inside.host}\r\nOrigin: {origin}\r\nCookie: {inside.cookie}\r\n"
                heard = say(
                    inside.port, f"{head}{key}\r\n\r\n".encode(), wait_s=1.5, close=False, until=b"\r\n\r\n"
                )
                judge("websockets", (name, path, heard[:40]), b" 101 " not in heard.partition(b"\r\n")[0])


def test_hosts_origins_and_pages_from_elsewhere(ways, judge):
    join = json.dumps({"data": [], "fn_index": 0, "session_hash": "csrf"})
    for name, _, inside in ways:
        foreign = (
            *(
                "evil.example",
                "127.0.0.1",
                "localhost",
                "[::1]",
                "0.0.0.0",
                "2130706433",
                "127.1",
                "",
                " ",
                "a" * 5000,
            ),
            *(
                f"evil.example:{inside.port}",
                f"x.{inside.host}",
                f"{inside.host}.evil.example",
                f"{inside.host}:1",
            ),
            *(
                f"user@{inside.host}",
                f"{inside.host}@evil.example",
                f"{inside.host}/x",
                f"{inside.host},evil.example",
            ),
        )
        for host in foreign:
            if host.strip():
                judge("hosts", (name, host[:40]), is_held(patiently(inside, "/config", host=host)[0]))
        for origin in (
            "http://evil.example",
            "null",
            "file://",
            f"https://x{inside.host}",
            "http://127.0.0.1:1",
            "x" * 3000,
        ):
            status = patiently(inside, JOIN, "POST", join, origin=origin, **JSON)[0]
            judge("origins", (name, origin[:40], status), status == 403)
        kinds = (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=a",
            "application/jsonp",
            "",
        )
        for kind in kinds:
            status = patiently(inside, JOIN, "POST", join, content_type=kind)[0]
            judge("origins", (name, kind, status), is_held(status))
        for site in ("cross-site", "same-site", "x"):
            judge(
                "origins",
                (name, site),
                patiently(inside, JOIN, "POST", join, sec_fetch_site=site, **JSON)[0] == 403,
            )
            judge("origins", (name, site), patiently(inside, "/config", sec_fetch_site=site)[0] == 403)
        for header in (
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-real-ip",
            "forwarded",
            "x-original-url",
        ):
            answer = patiently(inside, "/", **{header.replace("-", "_"): "evil.example"})[2]
            judge("headers", (name, header), b"evil.example" not in answer)


def bodies() -> Iterator[bytes]:
    """Yield bodies that are no JSON, too much of it, or JSON that means something else to somebody."""
    yield from (
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"\x00" * 99,
    )
    yield from (
        b"[" * 50000,
        b'{"a":' * 20000,
        b"[" * 20000 + b"]" * 20000,
        b"9" * 60000,
        b"-",
        b"1e999999",
        b"NaN",
        b"{}{}",
    )
    yield gzip.compress(b"0" * 5_000_000)
    for key in (
        "__proto__",
        "constructor",
        "prototype",
        "__class__",
        "session_hash",
        "fn_index",
        "data",
        "event_data",
        "request",
    ):
        for value in (
            {"isAdmin": True},
            [[]],
            "\u0000",
            10**60,
            -1,
            None,
            {"__type__": "x", "path": "/etc/passwd"},
        ):
            yield json.dumps({"data": [], "fn_index": 0, "session_hash": "bodies", key: value}).encode()
    for kept in (
        "/etc/passwd",
        "../gate.key",
        "http://127.0.0.1:1/",
        "file:///etc/passwd",
        "C:\\Windows\\win.ini",
    ):
        given = {"path": kept, "url": kept, "meta": {"_type": "gradio.FileData"}, "is_stream": True}
        yield json.dumps({"data": [given] * 4, "fn_index": 0, "session_hash": "bodies"}).encode()
    yield b'{"session_hash":"a","session_hash":"b","fn_index":0,"data":[]}'
    yield b'{"fn_index":0,"fn_index":1,"data":["' + b"\\ud800" * 900 + b'"],"session_hash":"bodies"}'


def test_bodies(shared, ways, judge):
    secrets = secrets_of(shared)
    for name, _, inside in (ways[0], ways[1], ways[2]):
        for body in bodies():
            started = time.monotonic()
            encoding = {"content_encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}
            status, _, answer = patiently(inside, JOIN, "POST", body, **JSON, **encoding)
            fine = status < 500 and not any(secret in answer for secret in secrets)
            judge("bodies", (name, body[:60], status), fine and time.monotonic() - started < 60)
        for length in (64 * 1024 + 1, 9 * 1024**2, 2**40, 2**63):
            heard = say(inside.port, f"POST {JOIN} HTTP/1.1\r\nHost: {inside.host}\r\nCookie: {inside.cookie}\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{{".encode())  # fmt: skip
            judge("bodies", (name, length, heard[:40]), 200 not in statuses(heard))


def test_half_and_slow_requests(ways, judge):
    """Connections that never say their whole request keep nobody out, and are ended."""
    for name, _, inside in ways[:3]:
        held: list[socket.socket] = []
        heads = (b"G", b"GET / HTTP/1.1\r\n", f"GET / HTTP/1.1\r\nHost: {inside.host}\r\nX-Slow: ".encode())
        body = f"POST {JOIN} HTTP/1.1\r\nHost: {inside.host}\r\nContent-Type: application/json\r\n"
        body += "Content-Length: 50\r\n\r\n{"
        for number in range(60):
            connection = socket.create_connection(("127.0.0.1", inside.port), timeout=5)
            connection.sendall([*heads, body.encode(), b""][number % 5])
            held.append(connection)
        started = time.monotonic()
        status = patiently(inside, "/config")[0]
        judge("slow", (name, status), status == 200 and time.monotonic() - started < 10)
        until = time.monotonic() + 40
        for number, connection in enumerate(held):
            connection.settimeout(max(0.1, until - time.monotonic()))
            try:
                ended = b"\r\n" in connection.recv(4096) or True
            except TimeoutError:
                ended = False
            except OSError:
                ended = True
            connection.close()
            judge("slow", (name, number % 5), ended)


def test_reset_connections(ways, judge):
    """Peers that break off in the middle of an answer."""
    for _, _, inside in ways[:3]:
        for _ in range(10):
            connection = socket.create_connection(("127.0.0.1", inside.port), timeout=5)
            head = f"GET /config HTTP/1.1\r\nHost: {inside.host}\r\nCookie: {inside.cookie}\r\n\r\n"
            connection.sendall(head.encode() * 3)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        judge("resets", inside.port, patiently(inside, "/config")[0] == 200)


def test_the_studio_is_well(shared, ways, tried):
    """Last."""
    print(dict(tried.kinds))
    assert sum(tried.kinds.values()) >= 700
    check_the_studio(shared, ways)
