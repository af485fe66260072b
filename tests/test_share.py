"""Sharing as a person starts it: a launched studio attacked from all its doors.

The relay is our own, on loopback: it passes bytes on as they come, so that the studio sees the Host of the link. All
traffic stays on 127.0.0.1. The public relay is not tested.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlencode

import psutil
import pytest

from tests.launched import processes_of, start, wait_for
from tests.path_spellings import SPELLINGS

RELAY = """#!{python}
# Listens on a port of its own and passes bytes on to the one given: a relay and its client in one.
import os, socket, sys, threading, time
inner = socket.create_server(("127.0.0.1", 0))
name = "relay-%s.example" % sys.argv[1]
open(os.path.join(os.environ["TEST_RELAYS"], name), "w").write("%d %d" % (inner.getsockname()[1], os.getpid()))
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


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    """The relay's program, and the folder in which each one running notes its port and pid."""
    folder = tmp_path_factory.mktemp("relay")
    program = folder / "relay"
    program.write_text(RELAY.replace("{python}", sys.executable), encoding="utf-8")
    program.chmod(0o755)
    (folder / "notes").mkdir()
    return program, folder / "notes"


def read_note(notes: Path, port: int) -> tuple[int, int]:
    """Return the relay's own port and pid."""
    words = (notes / f"relay-{port}.example").read_text(encoding="utf-8").split()
    return int(words[0]), int(words[1])


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# A launched studio ---------------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def shared(tmp_path_factory, relay):
    """One studio for the tests below, started with every switch of Gradio's that opens something, and with secrets."""
    program, notes = relay
    folder = tmp_path_factory.mktemp("shared")
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


@pytest.fixture(params=["direct", "relayed"])
def guest(shared, request):
    """A guest, at this machine and by the link."""
    browser = getattr(shared, request.param)("viewer")
    return browser.enter(shared.told("viewer")[1])


def doors(shared) -> list[Browser]:
    """Every port and every way to it, each with a cookie that it knows."""
    found = [shared.local()]
    for role in ("viewer", "owner"):
        for browser in (shared.direct(role), shared.relayed(role)):
            found.append(browser.enter(shared.told(role)[1]))
    return found


@pytest.mark.slow
def test_the_doors_open_for_those_who_belong_there(shared):
    for browser in doors(shared):
        status, headers, body = browser.ask("/")
        assert status == 200 and b"gradio_config" in body
        assert (
            headers["x-frame-options"] == "DENY"
            and "frame-ancestors 'none'" in headers["content-security-policy"]
        )
        root = re.search(rb'"root":"([^"]+)"', body)[1].decode()
        assert root == f"{browser.scheme}://{browser.host}", "not what GRADIO_ROOT_PATH or a header says"
        assert b"evil.example" not in browser.ask("/", x_forwarded_host="evil.example")[2]
        config = json.loads(browser.ask("/config")[2])
        assert not config.get("run_history") and not config.get("vibe_mode") and not config.get("mcp_server")


@pytest.mark.slow
def test_foreign_hosts_origins_and_kinds_of_data_are_refused_at_every_door(shared):
    join = json.dumps({"data": [], "fn_index": 0, "session_hash": "s"})
    call = json.dumps({"data": "x", "component_id": 1, "fn_name": "x", "session_hash": "s"})
    server = "/gradio_api/component_server"
    for browser in doors(shared):
        for host in (
            "evil.example",
            "127.0.0.1",
            f"evil.example:{browser.port}",
            f"x.{browser.host}",
            "localhost:1",
        ):
            assert browser.status("/", host=host) == 400, host
        for origin in ("http://evil.example", "null", f"https://x{browser.host}", "http://127.0.0.1:1"):
            assert browser.status(JOIN, "POST", join, origin=origin, **JSON) == 403, origin
            assert browser.status(server, "POST", call, origin=origin, content_type="text/plain") == 403
        assert browser.status(JOIN, "POST", join, content_type="text/plain") == 415
        assert browser.status(server, "POST", call, content_type="text/plain") in (403, 415)
        assert browser.status(JOIN, "POST", join, sec_fetch_site="cross-site", **JSON) == 403
        assert browser.status(JOIN, "OPTIONS", origin="http://evil.example") == 405
        preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        status, answer, _ = browser.ask(JOIN, "OPTIONS", **preflight)
        assert status == 405 and "access-control-allow-origin" not in answer
        answer = browser.ask("/config", origin="http://evil.example")[1]
        assert "access-control-allow-origin" not in answer, "no other page may read an answer"
        assert browser.stranger().status(JOIN, "POST", join, **JSON) in SHUT
        assert browser.status("/gradio_api/upload", "POST", b"x", content_length="9" * 12) in (403, 413, 415)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["/monitoring", "/gradio_api/mcp", "/gradio_api/mcp/schema", "/gradio_api/vibe-code", "/gradio_api/runs",
     "/gradio_api/run-history/records", "/openapi.json", "/gradio_api/openapi.json", "/gradio_api/deep_link",
     "/gradio_api/proxy=http://127.0.0.1:1/", "/gradio_api/file=http://127.0.0.1:1/", "/gradio_api/token"],
)  # fmt: skip
def test_switches_of_the_environment_open_nothing(shared, path):
    for browser in (shared.local(), shared.direct("viewer"), shared.relayed("owner")):
        assert browser.status(path) == 403


@pytest.mark.slow
def test_a_guest_reaches_no_handler_of_the_owner(shared, guest):
    """By name and by number, at the guests' port and at the owner's, with the guest's cookie."""
    owners = json.loads(shared.local().ask("/config")[2])["dependencies"]
    numbers = [part["id"] for part in owners]
    mine = [part["id"] for part in json.loads(guest.ask("/config")[2])["dependencies"]]
    assert len(numbers) > 40 > len(mine)
    names = ("start", "list", "stop", "predict", "begin")
    elsewhere = [shared.local().stranger(), shared.direct("owner"), shared.relayed("owner")]
    for browser in elsewhere:
        browser.cookie = guest.cookie
    for name in names:
        body = json.dumps({"data": [], "session_hash": "g"})
        for path in (f"/gradio_api/run/{name}", f"/gradio_api/call/{name}", f"/gradio_api/call/v2/{name}"):
            assert guest.status(path, "POST", body, **JSON) == 403
            assert {browser.status(path, "POST", body, **JSON) for browser in elsewhere} <= SHUT
    for number in [*numbers[:: max(1, len(numbers) // 12)], 10**9, -1]:
        body = json.dumps({"data": [], "fn_index": number, "session_hash": "g", "trigger_id": 1})
        assert {browser.status(JOIN, "POST", body, **JSON) for browser in elsewhere} <= SHUT
        if number not in mine:
            assert guest.status(JOIN, "POST", body, **JSON) >= 400
    assert not list((shared.workspace / "runs").iterdir())


@pytest.mark.slow
def test_cookies_and_keys_are_good_at_their_own_door_alone(shared, guest):
    local, outside = shared.local(), shared.relayed("owner")
    outside.enter(shared.told("owner")[1])
    key = f"Bearer {shared.address()['key']}"
    assert local.stranger().status("/config", authorization=key) == 200
    for browser in (guest, outside):
        assert browser.stranger().status("/config", authorization=key) in SHUT
        assert browser.stranger().status("/config", cookie=local.cookie) in SHUT
        assert browser.status(f"/?token={shared.address()['url'].partition('token=')[2]}", cookie="") in SHUT
        renamed = f"{browser.cookie.partition('=')[0]}={local.cookie.partition('=')[2]}"
        assert browser.stranger().status("/config", cookie=renamed) in SHUT
    crossed = {guest.status("/config", cookie=outside.cookie), outside.status("/config", cookie=guest.cookie)}
    assert crossed <= SHUT


@pytest.mark.slow
def test_a_stolen_session_gives_the_thief_nothing(shared):
    pairs = [(shared.local(), shared.local())]
    one, two = shared.relayed("viewer"), shared.relayed("viewer")
    for browser in (one, two):
        browser.enter(shared.told("viewer")[1])
    for victim, thief in [*pairs, (one, two)]:
        session = f"page{id(victim)}"
        first = json.loads(victim.ask("/config")[2])["dependencies"][0]["id"]
        body = json.dumps({"data": [], "fn_index": first, "session_hash": session, "trigger_id": None})
        assert victim.status(JOIN, "POST", body, **JSON) == 200
        assert thief.status(f"/gradio_api/queue/data?session_hash={session}") == 403
        assert thief.status(f"/gradio_api/heartbeat/{session}") == 403
        for path in (JOIN, "/gradio_api/cancel", "/gradio_api/reset"):
            assert thief.status(path, "POST", body, **JSON) == 403
        assert victim.status(f"/gradio_api/queue/data?session_hash={session}") == 200


@pytest.mark.slow
def test_no_spelling_of_a_path_reaches_a_file(shared, guest):
    root, owner = shared.workspace, shared.local()
    key = (root / "gate.key").read_bytes()
    secrets = [key, b"root:", json.dumps(shared.address())[10:30].encode(), b"phrase_hash"]
    own = [root / name for name in ("gate.key", "address.json", "share.json", "logs/share.log", "api.key")]
    upward = [
        f"{root.as_posix()}/cwd/../gate.key",
        f"{root.as_posix()}/cache/gradio/../../gate.key",
        "../gate.key",
    ]
    for spelling in [*SPELLINGS, *map(str, own), *upward, str(root / "hf" / "token")]:
        written = quote(spelling.encode("utf-8", "surrogatepass")[:200], safe="/\\:")
        for path in (
            f"/gradio_api/file={written}",
            f"/gradio_api/file/{written}",
            f"/static/{written}",
            f"/assets/{written}",
        ):
            status, _, body = owner.ask(path)
            assert status in (400, 403, 404, 405, 429), (path, status)
            assert not any(secret in body for secret in secrets), path
    for path in own:
        assert guest.status(f"/gradio_api/file={path}") == 403
    assert (
        guest.status("/gradio_api/upload", "POST", b"x", content_type="multipart/form-data; boundary=x")
        == 403
    )


@pytest.mark.slow
def test_the_link_and_its_guests_outlive_a_crash_of_the_window(shared):
    guest, link = shared.relayed("viewer"), shared.told("viewer")
    guest.enter(link[1])
    tunnels = {role: read_note(shared.notes, shared.port(role))[1] for role in ("viewer", "owner")}
    pid = shared.address()["pid"]
    psutil.Process(pid).kill()

    def back() -> bool:
        try:
            listens = shared.direct("owner").status("/config") in SHUT
            return listens and shared.address()["pid"] != pid and guest.status("/config") == 200
        except (OSError, ValueError):
            return False

    wait_for(back, 120)
    for role, pid in tunnels.items():
        assert read_note(shared.notes, shared.port(role))[1] == pid, "the same tunnel, so the same link"
    assert shared.relayed("viewer").enter(link[1]).cookie, "and the same pass phrase"


@pytest.mark.slow
def test_sixty_pass_phrases_in_a_row(shared):
    guesser, phrase = shared.relayed("owner"), shared.told("owner")[1]
    inside = shared.relayed("owner")
    inside.enter(phrase)
    answers = [guesser.log_in(f"lusab-babad-{i}") for i in range(60)]
    assert answers.count(401) <= 4 and set(answers) == {401, 429}
    assert not guesser.cookie
    assert guesser.log_in(phrase) == 303, (
        "all of a link have one address: who knows the phrase is not shut out"
    )
    assert inside.status("/config") == 200, "who is in stays in"
    log = (shared.workspace / "logs" / "share.log").read_text(encoding="utf-8")
    assert log.count("wrong phrase") <= 4


@pytest.mark.slow
def test_no_secret_is_in_any_byte_that_is_kept_or_sent(shared, guest):
    secrets = [CANARY, shared.told("viewer")[1], shared.told("owner")[1]]
    sent = [browser.ask(path)[2] for browser in (guest, shared.local()) for path in ("/", "/config")]
    kept = [path for path in shared.workspace.rglob("*") if path.is_file()]
    assert len(kept) > 8
    for secret in secrets:
        assert not any(secret.encode() in body for body in sent)
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []
    assert CANARY not in "".join(shared.said)


@pytest.mark.slow
def test_nothing_outlives_the_studio(shared):
    """Last: the supervisor is killed without a word."""
    family = psutil.Process(shared.process.pid).children(recursive=True)
    relays = [psutil.Process(read_note(shared.notes, shared.port(role))[1]) for role in ("viewer", "owner")]
    assert {one.pid for one in relays} <= {one.pid for one in family}
    os.kill(shared.process.pid, 9)
    killed_s = time.monotonic()
    wait_for(lambda: not any(is_alive(one) for one in relays), 10)
    assert time.monotonic() - killed_s < 2.0, "no link leads to where nobody watches"
    wait_for(lambda: not any(is_alive(one) for one in family), 10)
