"""Attacks on a launched and shared studio, a table a kind: what each must not get; the studio is well afterwards.

All of it goes to 127.0.0.1: to the window's port, the guests' and the outside owner's, and through a relay of ours.
An attack got through when it gets an answer that only a caller of another role gets, a secret, a fault (5xx other than
the 503 of a full port), or words of its own back as HTML. Whoever asked too often (429) waits and asks again: each is
judged.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import socket
import statistics
import struct
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from studio.core.events import Diagnosis, RunFailed, SampleWritten, Warned
from studio.core.i18n import LANGUAGES, literal
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.engine.crash_records import append_event
from studio.engine.run_folder import create_run
from studio.ui.auth.rate_limit import ALLOWANCES
from studio.ui.shell.blocks import TerseBlocks
from tests.path_spellings import SPELLINGS
from tests.test_share import CANARY, JOIN, JSON, Browser, Shared, relay, shared  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.long]  # it mostly waits for answers

TRIED: Counter[str] = Counter()
FELL: list[str] = []
LEAST = 700
REFUSED = frozenset((400, 401, 403, 404, 405, 411, 413, 414, 415, 416, 422, 431, 501, 503))
PLAIN = 'attacker"><script>hit</script><img src=x onerror=hit>'
FILES = (
    "/gradio_api/file=",
    "/gradio_api/file/",
    "/file=",
    "/static/",
    "/assets/",
    "/gradio_api/stream/",
    "/theme/",
)
CLOSED = (
    *(
        "/login_check",
        "/token",
        "/app_id",
        "/monitoring",
        "/monitoring/x",
        "/logout",
        "/openapi.json",
        "/docs",
        "/redoc",
    ),
    *(
        "/user",
        "/queue/status",
        "/robots.txt",
        "/dev/reload",
        "/gradio_api/dev/reload",
        "/gradio_api/mcp/sse",
    ),
    *("/gradio_api/info", "/gradio_api/call/start", "/gradio_api/run/predict", "/gradio_api/api/start"),
    *("/gradio_api/upload", "/gradio_api/upload_progress?upload_id=a", "/gradio_api/file=/etc/passwd"),
    *(
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "/gradio_api/deep_link",
        "/gradio_api/vibe-code",
        "/gradio_api/runs",
    ),
    *(
        "/gradio_api/component_server",
        "/gradio_api/component_server/",
        "/gradio_api/stream/a/b/c/playlist.m3u8",
    ),
    *("/gradio_api/custom_component/1/client/component/../../../../etc/passwd", "/custom_component/1/x/y/z"),
    *(
        "/gradio_api/process_recording",
        "/gradio_api/token",
        "/gradio_api/user",
        "/gradio_api/monitoring/summary",
    ),
    *("/svelte/../../x", "/ready", "/gradio_api/startup-events", "/gradio_api/queue/status", "/api/predict"),
)
"""What Gradio has, or had, beside what a guests' page asks for."""
WORDS = (
    PLAIN,
    "__proto__",
    "constructor",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "a\r\nSet-Cookie: owned=1\r\n\r\n<b>",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202egnp.exe\u2066\ufeff\u0000",
    "\ud83d",
    "../../gate.key",
    "A" * 9000,
    "' OR 1=1 --",
    "%s%s%s%n%x",
)


class Tags(HTMLParser):
    """Collects the tags and the names of attributes of a page."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.feed(words)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found += [(tag, name) for name, _ in attrs] or [(tag, "")]


def judge(kind: str, what: object, held: bool) -> None:
    """Count one attack."""
    TRIED[kind] += 1
    if not held:
        FELL.append(f"{kind}: {what!r}"[:300])


def patiently(
    browser: Browser, path: str, method: str = "GET", body: bytes | str | None = None, **headers: str
):
    """Ask until the answer is not "too often"; a connection that is closed without a word counts as refused (400)."""
    for _ in range(200):
        try:
            status, given, answer = browser.ask(path, method, body, **headers)
        except (OSError, ValueError):
            return 400, {}, b""
        except Exception as error:  # noqa: BLE001 http.client raises what is no OSError for half an answer
            if type(error).__module__ != "http.client":
                raise
            return 400, {}, b""
        if status != 429:
            return status, given, answer
        time.sleep(0.25)
    raise AssertionError(f"asked too often for {path}")


def say(port: int, words: bytes, *, wait_s: float = 3.0, close: bool = True) -> bytes:
    """Return all that comes back for raw bytes within `wait_s`."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as connection:
        heard = b""
        try:
            connection.sendall(words)
            if close:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                heard += part
        except OSError:
            pass
    return heard


def statuses(heard: bytes) -> list[int]:
    """Return the status of each answer in what came back."""
    return [int(number) for number in re.findall(rb"HTTP/1\.[01] (\d{3})", heard)]


def is_held(status: int) -> bool:
    """Return whether a status is a refusal, and no fault of the studio's."""
    return status in REFUSED


def secrets_of(studio: Shared) -> list[bytes]:
    """Return what must be in no answer."""
    address = studio.address()
    found = [
        CANARY.encode(),
        (studio.workspace / "gate.key").read_bytes(),
        address["key"].encode(),
        b"root:x:0:0",
    ]
    return [*found, *(studio.told(role)[1].encode() for role in ("viewer", "owner"))]


def ids_of(browser: Browser) -> list[int]:
    """Return the numbers of all handlers of a page."""
    return [part["id"] for part in json.loads(patiently(browser, "/config")[2])["dependencies"]]


@pytest.fixture(scope="module")
def ways(shared):  # noqa: F811
    """Every way in: a name, a browser without any right, and one that came in there."""
    local = shared.local()
    found = [("window", local.stranger(), local)]
    for role in ("viewer", "owner"):
        for way in ("direct", "relayed"):
            inside = getattr(shared, way)(role).enter(shared.told(role)[1])
            found.append((f"{role} {way}", inside.stranger(), inside))
    return found


@pytest.fixture(scope="module")
def guests(ways):
    """The two guests: at this machine and by the link."""
    return [inside for name, _, inside in ways if name.startswith("viewer")]


def test_files(shared, ways):  # noqa: F811
    secrets = secrets_of(shared)
    root = shared.workspace
    (root / "uploads").mkdir(exist_ok=True)
    for name, target in (("link.txt", "/etc/passwd"), ("key.txt", root / "gate.key"), ("root", "/")):
        for folder in (root, root / "uploads", root / "cache"):
            if folder.is_dir() and not (folder / name).is_symlink():
                os.symlink(target, folder / name)
    own = [
        root / name
        for name in ("gate.key", "share.json", "api.key", "link.txt", "uploads/key.txt", "cache/link.txt")
    ]
    own += [root / "root/etc/passwd", root / "runs", Path("/proc/self/environ"), Path("/dev/stdin")]
    spellings = [*SPELLINGS, *map(str, own), f"{root}/cache/gradio/../../gate.key", f"/../..{root}/gate.key"]
    for name, stranger, inside in ways:
        routes = FILES if name in ("window", "viewer direct") else FILES[:1]
        for spelling in spellings:
            written = quote(spelling.encode("utf-8", "surrogatepass")[:300], safe="/\\:")
            for route in routes:
                status, _, body = patiently(inside, route + written)
                judge(
                    "files",
                    (name, route + spelling, status),
                    is_held(status) and not any(s in body for s in secrets),
                )
        for spelling in spellings[::6]:
            status, _, body = patiently(stranger, FILES[0] + quote(spelling, safe="/"))
            judge(
                "files", (name, "stranger", status), is_held(status) and not any(s in body for s in secrets)
            )


def test_ranges(ways):
    _, _, owner = ways[0]
    asset = re.search(rb'(?:src|href)="[^"]*?(/assets/[\w./-]+\.js)"', patiently(owner, "/")[2])[1].decode()
    whole = patiently(owner, asset)[2]
    ranges = [
        *(
            "bytes=0-0",
            "bytes=-1",
            "bytes=9-1",
            "bytes=-0",
            "bytes=99999999999999999999-",
            "bytes=a-b",
            "bytes=",
            "x=0-1",
        ),
        *(
            "bytes=0-,0-,0-",
            "bytes=" + "0-0," * 2000 + "0-0",
            "bytes=0-18446744073709551615",
            "bytes=-99999999999",
        ),
    ]
    for given in ranges:
        status, _, body = patiently(owner, asset, range=given)
        judge("ranges", (given[:30], status), status < 500 and len(body) <= 2 * len(whole) + 1_000_000)


def test_routes_that_are_closed(ways):
    for name, stranger, inside in ways:
        shut_to = [("stranger", stranger)] + ([("guest", inside)] if name.startswith("viewer") else [])
        for who, browser in shut_to:
            for path in CLOSED[:: 1 if who == "guest" else 3]:
                for method, extra in (("GET", {}), ("POST", JSON)):
                    status = patiently(browser, path, method, "{}" if method == "POST" else None, **extra)[0]
                    fine = (path in ("/ready", "/gradio_api/startup-events") and name == "window") or is_held(
                        status
                    )
                    judge("routes", (name, who, method, path, status), fine)


def test_handlers_of_the_owner(shared, ways, guests):  # noqa: F811
    owners = ids_of(ways[0][2])
    for guest in guests:
        mine = set(ids_of(guest))
        wrong: list[object] = [number for number in owners if number not in mine]
        wrong += [
            -1,
            10**9,
            10**40,
            1.5,
            True,
            None,
            [],
            {},
            str(owners[-1]),
            "start",
            "__proto__",
            "constructor",
            float("1e308"),
        ]
        for number in wrong:
            body = json.dumps({"data": [], "fn_index": number, "session_hash": "attack", "trigger_id": 1})
            status, _, answer = patiently(guest, JOIN, "POST", body, **JSON)
            taken = status == 200 and number not in (True, None, 1.5)
            judge("handlers", (number, status, answer[:80]), status < 500 and not taken)
        for number in sorted(mine)[:3]:
            for key in ("fn_index", "fn", "api_name", "__proto__"):
                for value in (owners[-1], str(owners[-1])):
                    body = json.dumps({"data": [], key: value, "fn_index": number, "session_hash": "attack"})
                    status = patiently(guest, JOIN, "POST", body, **JSON)[0]
                    judge("handlers", (key, value, status), status < 500)
    assert not list((shared.workspace / "runs").iterdir())


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


def test_requests_that_no_browser_sends(ways):
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


def test_websockets(ways):
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
                heard = say(inside.port, f"{head}{key}\r\n\r\n".encode(), wait_s=1.5, close=False)
                judge("websockets", (name, path, heard[:40]), b" 101 " not in heard.partition(b"\r\n")[0])


def test_hosts_origins_and_pages_from_elsewhere(ways):
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


def test_bodies(shared, ways):  # noqa: F811
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


def parts() -> Iterator[tuple[str, bytes]]:
    """Yield a boundary and a body of an upload each."""
    stuffed = io.BytesIO()
    with zipfile.ZipFile(stuffed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../../../tmp/finetune-studio-slipped.txt", "slipped")
        archive.writestr("/tmp/finetune-studio-slipped.txt", "slipped")
        archive.writestr("rows.jsonl", b"0" * 20_000_000)
    names = [
        *SPELLINGS[:24],
        *WORDS,
        "con",
        "nul.txt",
        "a" * 400 + ".zip",
        ".bashrc",
        "x\u0000.txt",
        "a/b/c",
        "~/x",
        "$(id)",
        "`id`",
    ]
    for name in names:
        written = (
            name.encode("utf-8", "replace")
            .replace(b"\r", b"%0D")
            .replace(b"\n", b"%0A")
            .replace(b'"', b"%22")
        )
        head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="' + written + b'"\r\n\r\n'
        yield "b", head + (stuffed.getvalue() if name.endswith(".zip") else b"owned") + b"\r\n--b--\r\n"
    yield from (
        ("b", b""),
        ("b", b"--b"),
        ("b", b"--b--"),
        ("b", b"--c\r\n\r\n--c--"),
        ("", b"--\r\n\r\n----"),
        ("b" * 300, b"x"),
    )
    yield "b", b"--b\r\n" + b"X: 1\r\n" * 20000 + b"\r\nx\r\n--b--\r\n"
    yield (
        "b",
        b"--b\r\nContent-Disposition: form-data; name=files; filename="
        + b"\xff" * 90
        + b"\r\n\r\nx\r\n--b--\r\n",
    )
    yield (
        "b",
        b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + b"y" * 3_000_000 + b"\r\n--b--\r\n",
    )


def test_uploads(shared, ways):  # noqa: F811
    outside = {path for path in shared.workspace.parent.iterdir()} | set(Path.home().glob("*"))
    for name, _, inside in (ways[0], ways[1], ways[3]):
        for boundary, body in parts():
            kind = f"multipart/form-data; boundary={boundary}"
            status, given, answer = patiently(inside, "/gradio_api/upload", "POST", body, content_type=kind)
            held = status in (403, 415) if name.startswith("viewer") else status < 500
            if status == 200:
                kept = [Path(path) for path in json.loads(answer)]
                held = held and all(
                    path.resolve().is_relative_to(shared.workspace.resolve()) for path in kept
                )
                for path in kept[:1]:
                    back = patiently(inside, FILES[0] + quote(str(path), safe="/"))
                    shown = (back[1].get("content-type") or "").partition(";")[0]
                    attached = "attachment" in (back[1].get("content-disposition") or "")
                    held = held and (attached or shown not in ("text/html", "image/svg+xml", "text/xml"))
            judge("uploads", (name, body[:90], status), held and b"owned=1" not in str(given).encode())
    assert {path for path in shared.workspace.parent.iterdir()} | set(Path.home().glob("*")) == outside
    assert not Path("/tmp/finetune-studio-slipped.txt").exists()


def test_sessions_and_cookies(shared, ways, guests):  # noqa: F811
    one, two = guests
    number = ids_of(one)[0]
    for session in ("victim", "victim/../x", "__proto__", "%00", "victim\u0000", "1" * 3000):
        body = json.dumps({"data": [], "fn_index": number, "session_hash": session, "trigger_id": None})
        if patiently(one, JOIN, "POST", body, **JSON)[0] != 200:
            continue
        for path in (
            f"/gradio_api/queue/data?session_hash={quote(session)}",
            f"/gradio_api/heartbeat/{quote(session)}",
        ):
            judge("sessions", (session[:20], path[:40]), patiently(two, path)[0] in (400, 403, 404))
        for path in (JOIN, "/gradio_api/cancel", "/gradio_api/reset"):
            judge("sessions", (session[:20], path), patiently(two, path, "POST", body, **JSON)[0] == 403)
    for query in (
        "session_hash=a&session_hash=victim",
        "session_hash[]=victim",
        "session_hash=",
        "session_hash=victim%00",
    ):
        status = patiently(two, f"/gradio_api/queue/data?{query}")[0]
        judge("sessions", (query, status), status < 500)
    for name, stranger, inside in ways:
        label, _, value = inside.cookie.partition("=")
        forged = [
            *(
                f"{label}=",
                f"{label}=null",
                f"{label}={value[:-1]}",
                f"{label}={value}0",
                f"{label}={value.swapcase()}",
            ),
            *(
                f"{label}={'0' * len(value)}",
                f"x{label}={value}",
                f"{label}x={value}",
                f"{label}={value[::-1]}",
            ),
            *(
                f'{label}="{value}',
                f"{label}={label}={value}",
                "role=owner",
                f"{label}=owner",
                f"{label}=1' OR '1'='1",
            ),
            *(other.cookie for kind, _, other in ways if kind.split()[0] != name.split()[0]),
        ]
        for cookie in forged:
            judge("cookies", (name, cookie[:40]), patiently(stranger, "/config", cookie=cookie)[0] == 401)
        for key in (shared.address()["key"], "", "x", "Basic b3duZXI6", "Bearer", f"bearer  {value}"):
            if name != "window" or key != shared.address()["key"]:
                status = patiently(stranger, "/config", authorization=f"Bearer {key}")[0]
                judge("cookies", (name, "key", key[:10]), status == 401)


def read_outputs(browser: Browser, session: str, wait_s: float = 6.0) -> str:
    """Return what the queue sends to a page within a while."""
    head = f"GET /gradio_api/queue/data?session_hash={session} HTTP/1.1\r\nHost: {browser.host}\r\n"
    heard = say(browser.port, f"{head}Cookie: {browser.cookie}\r\n\r\n".encode(), wait_s=wait_s, close=False)
    return heard.decode("utf-8", "replace")


def pages_in(words: str) -> Iterator[str]:
    """Yield every text that stands anywhere in the events of a stream."""

    def walk(part: object) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from (found for each in part.values() for found in walk(each))
        elif isinstance(part, list):
            yield from (found for each in part for found in walk(each))

    for line in words.splitlines():
        if line.startswith("data: "):
            try:
                yield from walk(json.loads(line[6:]))
            except ValueError:
                continue


def test_words_come_back_as_words(shared, guests):  # noqa: F811
    """Names, samples and warnings of runs, and what a guest sends: nothing of it is HTML again in what is served."""
    recipe = Recipe(name=PLAIN, model=ModelChoice(source=PLAIN), data=DatasetSpec(source=PLAIN))
    run = create_run(shared.workspace / "runs", recipe)
    for event in (
        Warned(message=literal(PLAIN)),
        SampleWritten(step=1, prompt=PLAIN, answer=PLAIN, expected=PLAIN, base=PLAIN),
        RunFailed(step=1, diagnosis=Diagnosis(id="x", what=literal(PLAIN), why=literal(PLAIN), fixes=())),
    ):
        append_event(run, event)
    seen = 0
    for guest in guests:
        config = json.loads(patiently(guest, "/config")[2])
        for part in config["dependencies"]:
            for which, words in enumerate(WORDS):
                session = f"words{guest.port}x{part['id']}x{which}"
                said = {"do": words, "value": words, "form": {words: words}, "__proto__": {"x": 1}}
                data = [said if index % 2 else words for index, _ in enumerate(part["inputs"])]
                body = {"data": data, "fn_index": part["id"], "session_hash": session, "trigger_id": None}
                status = patiently(guest, JOIN, "POST", json.dumps(body), **JSON)[0]
                judge("words", (part["id"], words[:20], status), status < 500)
                if status != 200 or which:
                    continue
                shown = read_outputs(guest, session)
                seen += PLAIN[:8] in shown
                raw = [one for one in pages_in(shown) if "<" in one and PLAIN != one and "script>hit" in one]
                tags = [tag for one in raw for tag in Tags(one).found]
                held = not any(tag == "script" or name.startswith("on") for tag, name in tags)
                judge(
                    "words",
                    (part["id"], tags[:3]),
                    held and "Traceback" not in shown and str(shared.workspace) not in shown,
                )
    assert seen, "the run's name was shown to somebody"
    page = patiently(guests[0], "/")[2]
    judge("words", "page", b"<script>hit" not in page)


def test_logs(shared):  # noqa: F811
    """What a stranger says of itself must not write lines or colours into the terminal or the log."""
    stranger = shared.relayed("viewer")
    for words in (
        "\x1b[31mowned",
        "owned\tINFO all is well",
        "ow\u0085ned",
        "%s%n",
        "owned" * 4000,
        "\u202eowned",
    ):
        head = (
            f"GET /owned HTTP/1.1\r\nHost: {stranger.host}\r\nUser-Agent: {words}\r\nReferer: {words}\r\n\r\n"
        )
        say(stranger.port, head.encode("utf-8"))
        form = urlencode({"phrase": words + "\r\n2026-01-01 INFO owned"})
        kind = "application/x-www-form-urlencoded"
        status = stranger.ask("/login", "POST", form, content_type=kind, user_agent="owned")[0]
        judge("logs", (words[:20], status), status in (401, 429, 413))
    guest = stranger.enter(shared.told("viewer")[1])
    for number in ids_of(guest):
        for words in ("\x1b[31mowned\nINFO owned", "\u202eowned"):
            body = json.dumps({"data": [words], "fn_index": number, "session_hash": f"logs{number}"})
            judge("logs", number, patiently(guest, JOIN, "POST", body, **JSON)[0] < 500)
    time.sleep(2)
    kept = "".join(path.read_text("utf-8", "replace") for path in (shared.workspace / "logs").glob("*"))
    said = "".join(shared.said)
    for words in ("\x1b[31mowned", "\nowned", "\nINFO owned", "\u202eowned"):
        judge("logs", words, words not in kept and words not in said)


def test_half_and_slow_requests(ways):
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


def test_pass_phrases(shared):  # noqa: F811
    guesser, phrase = shared.relayed("viewer"), shared.told("viewer")[1]
    kind = "application/x-www-form-urlencoded"
    guesses = [f"lusab-babad-{i}" for i in range(30)] + [
        *WORDS,
        "",
        " ",
        phrase[:-1],
        phrase + "x",
        phrase[::-1],
    ]
    seen = Counter()
    for guess in guesses:
        form = urlencode({"phrase": guess.encode("utf-8", "replace")})
        status, given, _ = guesser.ask("/login", "POST", form, content_type=kind)
        seen[status] += 1
        judge("phrases", (guess[:20], status), status in (401, 413, 429) and not given.get("set-cookie"))
    judge("phrases", dict(seen), seen[429] > len(guesses) // 2)
    for form in (
        b"",
        b"phrase",
        b"phrase=",
        b"phrase=%",
        b"phrase[]=x",
        b"&" * 9000,
        b"phrase=a&phrase=b",
        b"\xff" * 200,
        b"x" * 70_000,
    ):
        status = guesser.ask("/login", "POST", form, content_type=kind)[0]
        judge("phrases", (form[:20], status), status in (400, 401, 413, 429))
    for target in (
        "/?next=//evil.example",
        "/login?next=http://evil.example",
        "/?token=x",
        "//evil.example/%2f..",
        "/\\evil.example",
    ):
        status, given, _ = guesser.ask(target)
        judge("phrases", (target, status), "evil" not in (given.get("location") or ""))
    # A phrase that begins rightly is not judged longer than one that does not.
    times: dict[str, list[float]] = {"right": [], "wrong": []}
    for _ in range(40):
        for name, guess in (("right", phrase[:-1] + "~"), ("wrong", "~" * len(phrase))):
            started = time.perf_counter()
            guesser.ask("/login", "POST", urlencode({"phrase": guess}), content_type=kind)
            times[name].append(time.perf_counter() - started)
    apart_s = abs(statistics.median(times["right"]) - statistics.median(times["wrong"]))
    judge("phrases", ("timing", apart_s), apart_s < 0.02)


def test_nothing_of_the_past_opens_again(shared):  # noqa: F811
    """The one-time token, a cookie of a guest that was sent away, and requests said again."""
    address = shared.address()["url"]
    port = int(re.search(r":(\d+)/", address)[1])
    used = address.partition(str(port))[2]
    first, again = Browser(port, f"127.0.0.1:{port}"), Browser(port, f"127.0.0.1:{port}")
    assert patiently(first, used)[0] == 303
    judge("replay", "token", patiently(again, used)[0] == 401)
    for token in ("", "x", "null", "0" * 43, "%00", used[-10:]):
        judge("replay", token, patiently(again, f"/?token={token}")[0] == 401)
    guest = shared.relayed("viewer").enter(shared.told("viewer")[1])
    state = json.loads((shared.workspace / "share.json").read_text(encoding="utf-8"))
    judge("replay", "phrase in share.json", shared.told("viewer")[1] not in json.dumps(state))
    kept = json.dumps(state) + "".join(
        p.read_text("utf-8", "replace") for p in (shared.workspace / "logs").glob("*")
    )
    judge("replay", "cookie in files", guest.cookie.partition("=")[2] not in kept)


def test_many_at_once(ways):
    """A flood of one guest: itself it slows down, nobody else."""
    _, _, guest = ways[2]
    _, _, owner = ways[0]
    answered: Counter[int] = Counter()

    def flood() -> None:
        for _ in range(60):
            try:
                answered[guest.ask("/config")[0]] += 1
            except OSError:
                answered[0] += 1

    threads = [threading.Thread(target=flood) for _ in range(12)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    slowest_s = 0.0
    while any(thread.is_alive() for thread in threads):
        started = time.monotonic()
        assert patiently(owner, "/ready")[0] == 204
        slowest_s = max(slowest_s, time.monotonic() - started)
        time.sleep(0.2)
    allowance = ALLOWANCES["viewer"]
    most = allowance.burst + allowance.rate * (time.monotonic() - begun) + allowance.at_once
    judge("flood", dict(answered), answered[200] <= most and not any(status >= 500 for status in answered))
    judge("flood", slowest_s, slowest_s < 20)


def test_reset_connections(ways):
    """Peers that break off in the middle of an answer."""
    for _, _, inside in ways[:3]:
        for _ in range(10):
            connection = socket.create_connection(("127.0.0.1", inside.port), timeout=5)
            head = f"GET /config HTTP/1.1\r\nHost: {inside.host}\r\nCookie: {inside.cookie}\r\n\r\n"
            connection.sendall(head.encode() * 3)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        judge("resets", inside.port, patiently(inside, "/config")[0] == 200)


def test_none_fell(shared, ways):  # noqa: F811
    """Last: how many were tried; all doors still know who belongs there; no traceback was written."""
    print(dict(TRIED), "tried", sum(TRIED.values()), "fell", len(FELL))
    said = "".join(shared.said) + "".join(
        path.read_text("utf-8", "replace") for path in (shared.workspace / "logs").glob("*")
    )
    assert not FELL, "\n" + "\n".join(FELL)
    assert sum(TRIED.values()) >= LEAST
    for _, _, inside in ways:
        assert patiently(inside, "/config")[0] == 200
    assert CANARY not in said
    assert len(re.findall("^Traceback", said, re.MULTILINE)) == 0, (
        "what guests send wrongly is quoted with a mark"
    )
    assert said.count("| Traceback") <= 2 * TerseBlocks.most_faults * len(LANGUAGES)
