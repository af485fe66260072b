"""A launched studio that is shared by links, and callers of all its doors.

The relay is our own, on loopback: it passes bytes on as they come, so that the studio sees the Host of the link. All
traffic stays on 127.0.0.1. The public relay is not tested.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import psutil

from tests.launched import processes_of, start, wait_for

RELAY = """#!{python}
# Listens on a port of its own and passes bytes on to the one given: a relay and its client in one.
import os, socket, sys, threading, time
inner = socket.create_server(("127.0.0.1", 0))
name = "relay-%s.example" % sys.argv[1]
note = os.path.join(os.environ["TEST_RELAYS"], name)
with open(note + ".new", "w") as file:
    file.write("%d %d" % (inner.getsockname()[1], os.getpid()))
os.replace(note + ".new", note)  # whole for whoever reads it meanwhile
print("connected; your address is https://%s" % name, flush=True)
def pump(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    for each in (one, other):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(guest):
    try:
        own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        guest.close()
        return
    threading.Thread(target=pump, args=(guest, own), daemon=True).start()
    pump(own, guest)
while True:
    threading.Thread(target=serve, args=(inner.accept()[0],), daemon=True).start()
"""
CANARY = "hf_CanaryInACoalMine0123456789"
SHUT = {401, 429}
"""Not known; or not known too often in a short time."""
JSON = {"content-type": "application/json"}
JOIN = "/gradio_api/queue/join"


def make_relay(folder: Path) -> tuple[Path, Path]:
    """Write the relay's program; return it and the folder in which each one running notes its port and pid."""
    program, notes = folder / "relay", folder / "notes"
    program.write_text(RELAY.replace("{python}", sys.executable), encoding="utf-8")
    program.chmod(0o755)
    notes.mkdir()
    return program, notes


def read_note(notes: Path, port: int) -> tuple[int, int]:
    """Return the relay's own port and pid."""
    words = (notes / f"relay-{port}.example").read_text(encoding="utf-8").split()
    return int(words[0]), int(words[1])


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs: one that nobody waits for stays as a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@dataclass
class Browser:
    """Asks one port with one Host, as a browser or as who pretends to be one."""

    port: int
    host: str
    scheme: str = "http"
    cookie: str = ""

    def ask(self, path: str, method: str = "GET", body: bytes | str | None = None, **headers: str):
        """Return status, headers and body; an Origin and the cookie are sent unless `headers` say otherwise."""
        sent = {"host": self.host, "cookie": self.cookie}
        sent |= {"origin": f"{self.scheme}://{self.host}"} if method == "POST" else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers={k: v for k, v in sent.items() if v})
            answer = connection.getresponse()
            endless = answer.headers.get("content-type", "").startswith("text/event-stream")
            return answer.status, answer.headers, b"" if endless and answer.status == 200 else answer.read()
        finally:
            connection.close()

    def status(self, path: str, method: str = "GET", body: bytes | str | None = None, **headers: str) -> int:
        """Return the status of the answer alone."""
        return self.ask(path, method, body, **headers)[0]

    def log_in(self, phrase: str) -> int:
        """Show a pass phrase and keep the cookie; return the status."""
        form = urlencode({"phrase": phrase})
        status, headers, _ = self.ask(
            "/login", "POST", form, content_type="application/x-www-form-urlencoded"
        )
        self.cookie = (headers.get("set-cookie") or self.cookie).partition(";")[0]
        return status

    def enter(self, phrase: str) -> Browser:
        """Show the right pass phrase, until it is looked at: other tests may have asked too often."""
        wait_for(lambda: self.log_in(phrase) == 303, 60)
        return self

    def stranger(self) -> Browser:
        """Return the same way in without the cookie."""
        return Browser(self.port, self.host, self.scheme)


@dataclass
class Shared:
    """A launched studio that is shared with guests, and with its owner from outside, by links."""

    workspace: Path
    process: object
    notes: Path
    said: list[str] = field(default_factory=list)

    def address(self) -> dict:
        return json.loads((self.workspace / "address.json").read_text(encoding="utf-8"))

    def told(self, role: str) -> tuple[str, str]:
        """Return link and phrase of a role as the terminal was told."""
        sign = {"viewer": "Guests come in", "owner": "from outside"}[role]
        words = next((line for line in self.said if sign in line), "")
        match = re.search(r"(https://\S+) with the passphrase ([a-z-]+)", words)
        return (match[1], match[2]) if match else ("", "")

    def port(self, role: str) -> int:
        """Return the role's own port."""
        return int(re.search(r"relay-(\d+)", self.told(role)[0])[1])

    def relayed(self, role: str) -> Browser:
        """Return a browser far away that opened the role's link."""
        link, port = self.told(role)[0], self.port(role)
        return Browser(read_note(self.notes, port)[0], link.removeprefix("https://"), "https")

    def direct(self, role: str) -> Browser:
        """Return a program at this machine that asks the role's port itself."""
        return Browser(self.port(role), f"127.0.0.1:{self.port(role)}")

    def local(self) -> Browser:
        """Return the owner's own browser, with a cookie."""
        url = self.address()["url"]
        port = int(re.search(r":(\d+)/", url)[1])
        browser = Browser(port, f"127.0.0.1:{port}")
        browser.cookie = browser.ask(url.partition(str(port))[2])[1]["set-cookie"].partition(";")[0]
        return browser


@contextmanager
def share_studio(folder: Path) -> Iterator[Shared]:
    """A studio in `folder`, started with every switch of Gradio's that opens something, and with secrets."""
    program, notes = make_relay(folder)
    (folder / "hf").mkdir()
    (folder / "hf" / "token").write_text(CANARY + "File", encoding="utf-8")
    environment = {
        "FINETUNE_STUDIO_TUNNEL": str(program),
        "TEST_RELAYS": str(notes),
        "FINETUNE_STUDIO_OFFLINE": "0",
        "HF_TOKEN": CANARY,
        "HF_HOME": str(folder / "hf"),
        "GRADIO_MCP_SERVER": "true",
        "GRADIO_SHARE": "true",
        "GRADIO_ALLOWED_PATHS": "/",
        "GRADIO_VIBE_MODE": "1",
        "GRADIO_RUN_HISTORY": "true",
        "GRADIO_SERVER_NAME": "0.0.0.0",
        "GRADIO_ROOT_PATH": "http://evil.example",
        "GRADIO_LOCAL_DEV_MODE": "1",
        "FORWARDED_ALLOW_IPS": "*",
    }
    process = start(folder / "workspace", "--no-browser", "--share", "--share-owner", **environment)
    studio = Shared(folder / "workspace", process, notes)
    for pipe in (process.stdout, process.stderr):
        threading.Thread(target=listen, args=(pipe, studio.said), daemon=True).start()
    try:
        wait_for(lambda: studio.told("viewer")[0] and studio.told("owner")[0], 120)
        yield studio
    finally:
        process.kill()
        process.wait()
        wait_for(lambda: not processes_of(folder / "workspace"), 20)


def listen(pipe, said: list[str]) -> None:
    """Keep every line of a pipe."""
    for line in pipe:
        said.append(line)
