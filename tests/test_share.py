"""Sharing as a person starts it: a launched studio attacked from all its doors.

The relay is our own, on loopback: it passes bytes on as they come, so that the studio sees the Host of the link. All
traffic stays on 127.0.0.1. The public relay is not tested.
"""

from __future__ import annotations

import json
import os
import re
import time
from urllib.parse import quote

import psutil
import pytest

from tests.launched import wait_for
from tests.path_spellings import SPELLINGS
from tests.shared_studio import CANARY, JOIN, JSON, SHUT, Browser, is_alive, read_note, share_studio


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One studio for the tests below."""
    with share_studio(tmp_path_factory.mktemp("shared")) as studio:
        yield studio


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
            # The last is closed to everybody, whoever asks.
            refused = SHUT | {403} if "/v2/" in path else SHUT
            assert {browser.status(path, "POST", body, **JSON) for browser in elsewhere} <= refused
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
