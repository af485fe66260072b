"""Asking as an attacker does, and what is judged of an answer.

An attack got through when it gets an answer that only a caller of another role gets, a secret, a fault (5xx other than
the 503 of a full port), or words of its own back as HTML. Whoever asked too often (429) waits and asks again: each is
judged.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass, field

from studio.core.i18n import LANGUAGES
from studio.ui.shell.blocks import TerseBlocks
from tests.shared_studio import CANARY, JOIN, Browser, Shared

REFUSED = frozenset((400, 401, 403, 404, 405, 411, 413, 414, 415, 416, 422, 429, 431, 501, 503))
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


@dataclass
class Tried:
    """The attacks of a file, and those that got through."""

    kinds: Counter[str] = field(default_factory=Counter)
    fell: list[str] = field(default_factory=list)

    def __call__(self, kind: str, what: object, held: bool) -> None:
        """Count one attack."""
        self.kinds[kind] += 1
        if not held:
            self.fell.append(f"{kind}: {what!r}"[:300])


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
        if status != 429 or path == JOIN:  # who never listens is refused for good (ui/shell/unheard.py)
            return status, given, answer
        time.sleep(0.25)
    raise AssertionError(f"asked too often for {path}")


def say(port: int, words: bytes, *, wait_s: float = 3.0, close: bool = True, until: bytes = b"") -> bytes:
    """Return all that comes back for raw bytes within `wait_s`, or until the pattern `until` is in it."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as connection:
        heard = b""
        try:
            connection.sendall(words)
            if close:
                connection.shutdown(socket.SHUT_WR)
            while not (until and re.search(until, heard, re.DOTALL)) and (part := connection.recv(65536)):
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


def check_the_studio(studio: Shared, ways: list) -> None:
    """Fail unless all doors still know who belongs there, and no traceback was written."""
    said = "".join(studio.said) + "".join(
        path.read_text("utf-8", "replace") for path in (studio.workspace / "logs").glob("*")
    )
    for _, _, inside in ways:
        assert patiently(inside, "/config")[0] == 200
    assert CANARY not in said
    assert len(re.findall("^Traceback", said, re.MULTILINE)) == 0, (
        "what guests send wrongly is quoted with a mark"
    )
    assert said.count("| Traceback") <= 2 * TerseBlocks.most_faults * len(LANGUAGES)
