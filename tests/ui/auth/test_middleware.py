"""The gate: who is refused, with which status, and what an answer carries; asked by HTTP on a small app."""

from __future__ import annotations

import errno
import json
import os
import re
import stat

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from studio.services.sharing import Sharing
from studio.ui.auth import middleware as gate
from studio.ui.auth.backends import Doors, LocalDoor, PhraseDoor
from studio.ui.auth.headers import SECURITY_HEADERS
from studio.ui.auth.middleware import Gate
from studio.ui.auth.rate_limit import RateLimits

HOST, GUESTS, OUTSIDE = "127.0.0.1:7999", "127.0.0.1:7960", "127.0.0.1:7961"
JSON = {"content-type": "application/json"}
JOIN = "/gradio_api/queue/join"


async def echo(request: Request) -> JSONResponse:
    """Tell what the app behind the gate sees."""
    body = await request.body()
    seen = {
        "bytes": len(body),
        "role": request.scope["studio.role"],
        "caller": request.scope["studio.caller"],
    }
    return JSONResponse(
        seen | {"headers": dict(request.headers)}, headers={"access-control-allow-origin": "*"}
    )


class Ports:
    """Stands in for the listeners: every port counts as open."""

    def start(self, role: str, way: str, port: int | None) -> int:
        return {"viewer": 7960, "owner": 7961}[role]

    def stop(self, role: str) -> None:
        return None


@pytest.fixture
def sharing(workspace):
    """Guests and the owner from outside are let in."""
    found = Sharing(workspace)
    found.begin(Ports(), {"viewer": "lan", "owner": "lan"})
    yield found
    found.close()


def make_app(doors: Doors, limits: RateLimits | None = None) -> Starlette:
    return Starlette(
        routes=[Route("/{path:path}", echo, methods=["GET", "POST"])],
        middleware=[Middleware(Gate, doors=doors, language=lambda: "zh-CN", limits=limits)],
    )


@pytest.fixture
def app(keys, sharing):
    doors = {7999: LocalDoor(keys), 7960: PhraseDoor(sharing, "viewer", 7960)}
    return make_app(Doors(doors | {7961: PhraseDoor(sharing, "owner", 7961)}))


def browse(app, host: str = HOST, **headers: str) -> TestClient:
    return TestClient(app, base_url=f"http://{host}", follow_redirects=False, headers=headers)


@pytest.fixture
def client(app):
    return browse(app)


@pytest.fixture
def known(client, keys):
    """The same client after it showed the token."""
    assert client.get(keys.url.split("7999")[1]).status_code == 303
    return client


def log_in(app, sharing, role: str, host: str) -> TestClient:
    """Return a browser that showed the pass phrase of `role`."""
    phrase = next(one.phrase for one in sharing.view().openings if one.role == role)
    guest = browse(app, host, origin=f"http://{host}")
    assert guest.post("/login", data={"phrase": phrase}).status_code == 303
    return guest


@pytest.fixture
def guest(app, sharing):
    return log_in(app, sharing, "viewer", GUESTS)


REFUSALS = [
    ("GET", "/", {"host": "evil.example"}, 400),
    ("GET", "/", {"host": "127.0.0.1"}, 400),
    ("GET", "/", {"host": "127.0.0.1:80"}, 400),
    ("GET", "/", {"host": "127.0.0.1.evil.example:7999"}, 400),
    ("GET", "/", {"host": "evil.example:7999"}, 400),
    ("GET", "/", {"host": "0.0.0.0:7999"}, 400),
    ("GET", "/", {"host": ""}, 400),
    ("POST", JOIN, {"origin": "http://evil.example"}, 403),
    ("POST", JOIN, {"origin": "null"}, 403),
    ("POST", JOIN, {"origin": "http://127.0.0.1:80"}, 403),
    ("POST", JOIN, {"origin": "https://127.0.0.1:7999"}, 403),
    ("POST", JOIN, {"origin": f"http://{GUESTS}"}, 403),
    ("POST", JOIN, {"sec-fetch-site": "cross-site"}, 403),
    ("POST", JOIN, {"sec-fetch-site": "same-site"}, 403),
    ("POST", JOIN, {"content-type": "text/plain"}, 415),
    ("POST", JOIN, {"content-type": "application/x-www-form-urlencoded"}, 415),
    ("POST", "/gradio_api/component_server", {"sec-fetch-site": "cross-site"}, 403),
    ("POST", "/gradio_api/component_server", {"content-type": "text/plain"}, 415),
    ("POST", "/gradio_api/component_server", {"content-type": "multipart/form-data; boundary=x"}, 415),
    ("POST", "/gradio_api/upload", {"content-type": "text/plain"}, 415),
    ("GET", "/config", {"sec-fetch-site": "cross-site"}, 403),
    ("GET", "/config", {"sec-fetch-site": "same-site"}, 403),
    ("GET", "/gradio_api/heartbeat/x", {"sec-fetch-site": "same-site"}, 403),
    ("GET", "/gradio_api/queue/data?session_hash=x", {"sec-fetch-site": "same-site"}, 403),
    ("OPTIONS", JOIN, {"origin": "http://evil.example"}, 405),
    ("PUT", JOIN, {}, 405),
    ("DELETE", "/", {}, 405),
    ("GET", "/gradio_api/file=http://evil.example/x", {}, 403),
    ("GET", "/gradio_api/file=HTTPS://evil.example/x", {}, 403),
    ("GET", "/assets/../gradio_api/vibe-code", {}, 403),
    ("GET", "/static/..\\..\\gate.key", {}, 403),
    ("POST", JOIN, {"content-length": "99999999"}, 413),
    ("POST", JOIN, {"content-length": "-1"}, 413),
    ("POST", JOIN, {"content-length": "1_0"}, 413),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), REFUSALS)
def test_refused_even_with_the_cookie(known, method, path, headers, status):
    answer = known.request(method, path.replace("..", "%2e%2e"), headers=JSON | headers)
    assert answer.status_code == status
    assert_hardened(answer)


CLOSED = """
/monitoring /monitoring/summary /gradio_api/monitoring /gradio_api/mcp /gradio_api/mcp/sse /gradio_api/mcp/schema
/gradio_api/vibe-edit /gradio_api/vibe-code /gradio_api/undo-vibe-edit /gradio_api/vibe-starter-queries /login /logout
/gradio_api/run-history/connect /gradio_api/run-history/records /gradio_api/runs /gradio_api/deep_link /openapi.json
/gradio_api/openapi.json /docs /redoc /gradio_api/dev/reload /gradio_api/token /gradio_api/user
/gradio_api/login_check /gradio_api/profiling/traces /gradio_api/profiling/clear /gradio_api/process_recording
/gradio_api/stream/x/1/2/playlist.m3u8 /gradio_api/custom_component/x/client/component/style.css /svelte/x /proxy=http://x
/gradio_api/proxy=http://x /gradio_api/file/x /gradio_api/queue/status /robots.txt /pwa_icon /x //gradio_api/queue/join
/gradio_api/api/predict /gradio_api/queue/join/ /manifest.json/x /configuration""".split()
"""Routes of Gradio that the studio does not use, and paths that nothing has."""
FOR_THE_OWNER = """/gradio_api/info /gradio_api/call/start /gradio_api/run/start /gradio_api/component_server
/gradio_api/upload /gradio_api/upload_progress /gradio_api/file=x /gradio_api/startup-events /ready""".split()


@pytest.mark.parametrize("path", CLOSED)
def test_routes_that_nobody_needs_are_closed(known, guest, path):
    for browser in (known, guest):
        expected = (303,) if (browser is guest and path == "/login") else (403,)
        assert browser.get(path).status_code in expected, path
        assert browser.post(path, json={}).status_code in (403, 415), path


@pytest.mark.parametrize("path", FOR_THE_OWNER)
def test_a_guests_port_has_no_way_to_files_uploads_or_calls(guest, path):
    assert guest.get(path).status_code == 403
    assert guest.post(path, json={}).status_code in (403, 415)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/config"), ("GET", "/?token=wrong"), ("GET", "/?token="), ("POST", JOIN),
     ("GET", "/gradio_api/heartbeat/x"), ("POST", "/gradio_api/startup-events"), ("GET", "/?token=%E4%BD%A0")],
)  # fmt: skip
def test_without_a_cookie_nothing_is_served(client, method, path):
    answer = client.request(method, path, headers=JSON | {"origin": f"http://{HOST}"})
    assert answer.status_code == 401
    assert "Finetune Studio" in answer.text
    assert 'lang="zh-CN"' in answer.text
    assert_hardened(answer)


def test_a_port_without_a_door_serves_nothing(app):
    assert browse(app, "127.0.0.1:7998").get("/").status_code == 400


def test_gradio_may_ask_itself_at_its_start(client):
    assert client.get("/gradio_api/startup-events").json()["role"] == ""


def test_the_splash_may_ask_whether_the_app_is_there(client):
    answer = client.get("/ready")
    assert (answer.status_code, answer.content) == (204, b"")
    assert client.get("/ready", headers={"host": "evil.example"}).status_code == 400


def test_the_owner_from_outside_may_ask_whether_the_studio_is_back(app, sharing):
    host = "127.0.0.1:7961"
    assert browse(app, host).get("/ready").status_code == 401
    assert log_in(app, sharing, "owner", host).get("/ready").status_code == 204


def test_the_token_works_once_and_becomes_a_strict_cookie(client, keys):
    token = keys.url.split("7999")[1]
    answer = client.get(token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert re.search("HttpOnly", cookie) and re.search("SameSite=Strict", cookie)
    assert client.get("/").status_code == 200
    assert client.get(token).status_code == 303, "a known browser that opens the old address is let on"
    client.cookies.clear()
    assert client.get(token).status_code == 401
    assert token not in keys.url
    assert client.get(keys.url.split("7999")[1]).status_code == 303


@pytest.mark.parametrize("way", ["account", "relay"])
def test_another_account_that_read_the_address_does_not_get_in(client, keys, monkeypatch, capsys, way):
    """The list of processes shows everybody the address that a browser is started with."""
    address, asked = keys.url.split("7999")[1], []
    if way == "account":
        monkeypatch.setattr(gate, "is_foreign", lambda *ends: asked.append(ends) or True)
    headers = {} if way == "account" else {"x-forwarded-for": "127.0.0.1"}
    answer = client.get(address, headers=headers)
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert client.get(address, headers=headers).status_code == 401
    assert capsys.readouterr().out.count("\n") == 1, "said once where the studio was started"
    assert way == "relay" or asked[0][0] == ("testclient", 50000)
    monkeypatch.undo()
    assert client.get(address).status_code == 303, "the token is not spent by it"


def test_a_link_on_another_page_opens_the_window(known, guest):
    for browser in (known, guest):
        for site in ("cross-site", "same-site", "none"):
            assert browser.get("/", headers={"sec-fetch-site": site}).status_code == 200


def test_an_own_post_passes_with_and_without_origin(known):
    assert known.post(JOIN, json={}, headers={"origin": f"http://{HOST}"}).json()["bytes"] == 2
    assert known.post(JOIN, json={}).json()["bytes"] == 2
    assert known.post(JOIN, content=b"[]", headers=JSON).status_code == 400
    assert known.post(JOIN, content=b"[" * 100_000, headers=JSON).status_code == 400
    assert known.post(JOIN, json={"session_hash": ["x"]}).status_code == 400


def test_a_program_shows_its_key(client, keys):
    assert client.get("/config", headers={"authorization": f"Bearer {keys.key}"}).json()["role"] == "owner"
    for wrong in (f"Bearer {keys.key}x", "Bearer ", f"Basic {keys.key}", keys.key, "Bearer \xe4"):
        assert client.get("/config", headers={"authorization": wrong.encode("latin-1")}).status_code == 401


def test_the_app_behind_sees_neither_secrets_nor_a_relays_words(known, guest):
    """Gradio would believe x-forwarded-host, and a log or a pickle of its could keep a cookie."""
    false = {
        "x-forwarded-host": "evil.example",
        "x-forwarded-proto": "https",
        "forwarded": "host=evil.example",
    }
    for browser in (known, guest):
        answer = browser.get("/config", headers=false | {"x-studio-role": "owner", "via": "x"})
        seen = answer.json()["headers"]
        assert not {"cookie", "authorization", "via", *false} & seen.keys()
        assert not any(name.startswith("x-") for name in seen)
        assert "access-control-allow-origin" not in answer.headers


def test_the_role_is_the_ports(app, keys, sharing, known, guest):
    outside = log_in(app, sharing, "owner", OUTSIDE)
    roles = [browser.get("/config").json()["role"] for browser in (known, guest, outside)]
    assert roles == ["owner", "viewer", "owner"]
    jars = {"local": known.cookies, "guest": guest.cookies, "outside": outside.cookies}
    values = [value for jar in jars.values() for value in jar.values()]
    for host, mine in ((HOST, "local"), (GUESTS, "guest"), (OUTSIDE, "outside")):
        name = list(jars[mine].keys())[0]
        for whose, jar in jars.items():
            if whose == mine:
                continue
            foreign = "; ".join(f"{key}={value}" for key, value in jar.items())
            renamed = "; ".join(f"{name}={value}" for value in jar.values())
            for cookie in (foreign, renamed):
                answer = browse(app, host, cookie=cookie).get("/config")
                assert answer.status_code == 401, f"{whose}'s cookie on {host}"
    assert browse(app, GUESTS, authorization=f"Bearer {keys.key}").get("/config").status_code == 401
    assert len(set(values)) == 3


def test_the_login_page_and_what_it_takes(app, sharing):
    stranger = browse(app, GUESTS, **{"accept-language": "en-GB,en;q=0.9"})
    page = stranger.get("/runs-of-mine")
    assert page.status_code == 403
    page = stranger.get("/")
    assert (page.status_code, "Passphrase" in page.text, 'lang="en"' in page.text) == (401, True, True)
    assert "口令" in stranger.get("/", headers={"accept-language": "zh-TW"}).text
    assert "口令" in stranger.get("/", headers={"accept-language": "fr"}).text, "else what the window speaks"
    assert "http" not in page.text, "it loads nothing"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    phrase = sharing.view().openings[0].phrase
    own = {"origin": f"http://{GUESTS}"}
    for headers in (
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        own | {"sec-fetch-site": "cross-site"},
    ):
        assert stranger.post("/login", data={"phrase": phrase}, headers=headers).status_code == 403
    assert stranger.post("/login", json={"phrase": phrase}, headers=own).status_code == 415
    assert stranger.post("/login", data={"phrase": phrase + "x" * 3000}, headers=own).status_code == 401
    assert stranger.post("/login", data={"wrong": phrase}, headers=own).status_code == 401
    typed = phrase.upper().replace("-", " ") + " "
    answer = stranger.post("/login", data={"phrase": typed}, headers=own)
    assert answer.status_code == 303
    assert re.search("HttpOnly; SameSite=Strict; Path=/; Max-Age=28[0-9]{3}$", answer.headers["set-cookie"])
    assert stranger.get("/").status_code == 200
    assert stranger.get("/login").headers["location"] == "/"


def test_a_link_with_https_makes_a_cookie_that_no_neighbour_can_set(app, sharing, monkeypatch):
    monkeypatch.setattr(
        sharing, "origin_of", lambda role, host: "https://x.example" if host == "x.example" else ""
    )
    phrase = sharing.view().openings[0].phrase
    answer = browse(app, GUESTS).post(
        "/login", data={"phrase": phrase}, headers={"host": "x.example", "origin": "https://x.example"}
    )
    assert answer.headers["set-cookie"].startswith("__Host-") and answer.headers["set-cookie"].endswith(
        "Secure"
    )
    cookie = answer.headers["set-cookie"].partition(";")[0]
    inside = browse(app, GUESTS, cookie=cookie).get("/config", headers={"host": "x.example"})
    assert inside.json()["headers"]["x-forwarded-proto"] == "https"


def test_sixty_pass_phrases_in_a_row(app, sharing):
    stranger = browse(app, GUESTS, origin=f"http://{GUESTS}")
    answers = [stranger.post("/login", data={"phrase": f"wrong {i}"}).status_code for i in range(60)]
    assert set(answers) <= {401, 429} and answers.count(401) <= 3, answers
    right = sharing.view().openings[0].phrase
    refused = stranger.post("/login", data={"phrase": right})
    assert refused.status_code == 429, "not even the right one is looked at"
    assert not sharing.view().connections


@pytest.mark.computing
def test_who_floods_a_link_leaves_the_login_page_to_others(app, sharing, monkeypatch):
    """Behind a link all strangers have one address."""
    monkeypatch.setattr(sharing, "behind_link", lambda role: True)
    stranger = browse(app, OUTSIDE, origin=f"http://{OUTSIDE}")
    assert {stranger.get("/").status_code for _ in range(90)} == {401}
    phrase = next(one.phrase for one in sharing.view().openings if one.role == "owner")
    assert stranger.post("/login", data={"phrase": phrase}).status_code == 303


def test_who_is_disconnected_is_out_at_once_and_a_stream_ends(app, sharing, guest):
    assert guest.get("/config").status_code == 200
    (connection,) = sharing.view().connections
    sharing.disconnect(connection.id)
    assert guest.get("/config").status_code == 401
    other = log_in(app, sharing, "viewer", GUESTS)
    sharing.close()
    assert other.get("/config").status_code == 400


def test_a_session_belongs_to_the_browser_that_opened_it(app, known, keys):
    thief = browse(app)
    thief.get(keys.url.split("7999")[1])
    mine = {"session_hash": "abc", "data": [], "fn_index": 0}
    assert known.post(JOIN, json=mine).status_code == 200
    assert known.get("/gradio_api/queue/data?session_hash=abc").status_code == 200
    assert known.get("/gradio_api/heartbeat/abc").status_code == 200
    stolen = [
        thief.get("/gradio_api/queue/data?session_hash=abc"),
        thief.get("/gradio_api/heartbeat/abc"),
        *(
            thief.post(f"/gradio_api/{name}", json=mine)
            for name in ("queue/join", "cancel", "reset", "component_server", "call/x", "run/x")
        ),
        thief.post(JOIN, content=json.dumps(mine).replace("session", "\\u0073ession"), headers=JSON),
        thief.post(JOIN, content=b'{"session_hash": "z", "session_hash": "abc"}', headers=JSON),
    ]
    assert [answer.status_code for answer in stolen] == [403] * len(stolen)
    for names in (
        "session_hash=z&session_hash=abc",
        "session_hash=abc&session_hash=",
        "session_hash=&session_hash=abc",
    ):
        twice = thief.get(f"/gradio_api/queue/data?{names}")
        assert twice.status_code == 400, "the app behind takes the last one"


@pytest.mark.parametrize(
    "other",
    ['x={"a":1}', "a b=c", 'x="un', "x=é", "expires=Wed, 09 Jun", "path=x", "a[b]=1", "", "novalue", "=x"],
)
def test_a_cookie_of_another_program_at_this_machine_hides_ours_from_nobody(known, keys, other):
    mine = f"{keys.cookie_name}={known.cookies[keys.cookie_name]}"
    known.cookies.clear()
    for header in (f"{other}; {mine}", f"{mine}; {other}"):
        assert known.get("/config", headers={"cookie": header.encode("utf-8")}).status_code == 200


@pytest.mark.computing
def test_strangers_may_not_ask_without_end(sharing):
    # The clock stands: on a slow machine 80 requests take so long that the rate of five a second refills the burst.
    stopped = RateLimits(clock=lambda: 0.0)
    stranger = browse(make_app(Doors({7960: PhraseDoor(sharing, "viewer", 7960)}), stopped), GUESTS)
    answers = [stranger.get("/").status_code for _ in range(80)]
    assert answers == [401] * 60 + [429] * 20


def test_a_full_disk_opens_the_first_page(app, keys, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("studio.ui.auth.owner.write_private", fail)
    assert browse(app).get(keys.url.split("7999")[1]).status_code == 303
    keys.tell_address()
    monkeypatch.undo()
    keys.tell_address()
    told = json.loads(keys.address_file.read_text(encoding="utf-8"))
    assert told["url"] == keys.url, "there is room again: a second start of the studio finds the window"
    keys.address_file.unlink()
    keys.tell_address()
    assert not keys.address_file.exists(), "written once"


def test_a_body_in_chunks_is_cut_off(known, guest, monkeypatch):
    monkeypatch.setattr(gate, "BODY_BYTES", {"owner": 1000, "viewer": 500})
    assert known.post(JOIN, content=(b" " * 400 for _ in range(2)), headers=JSON).status_code == 400
    for browser in (known, guest):
        assert browser.post(JOIN, content=(b"x" * 400 for _ in range(5)), headers=JSON).status_code == 413


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: permissions")
def test_the_files_are_private(keys, workspace, sharing):
    keys.write_address()
    for name in ("gate.key", "address.json", "share.json"):
        assert stat.S_IMODE((workspace.root / name).stat().st_mode) == 0o600


def assert_hardened(answer) -> None:
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value


def test_a_page_without_room_for_answers_may_not_ask_for_more(tmp_path):
    async def has_room(session: str) -> bool:
        return session != "deaf"

    keys = gate.Keys(tmp_path, 7999)
    app = Starlette(
        routes=[Route("/{path:path}", echo, methods=["GET", "POST"])],
        middleware=[
            Middleware(Gate, doors=Doors({7999: LocalDoor(keys)}), language=lambda: "en", has_room=has_room)
        ],
    )
    browser = TestClient(app, base_url=f"http://{HOST}", headers={"authorization": f"Bearer {keys.key}"})
    for session, status in (("deaf", 429), ("other", 200)):
        body = {"data": [], "fn_index": 0, "session_hash": session}
        assert browser.post(JOIN, json=body).status_code == status
        assert browser.post("/gradio_api/cancel", json=body).status_code == 200
