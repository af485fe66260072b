"""The gate: who is refused, with which status, and what an answer carries; asked by HTTP on a small app."""

from __future__ import annotations

import os
import re
import stat
import time

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from studio.ui import gate
from studio.ui.gate import SECURITY_HEADERS, Gate, Keys

HOST = "127.0.0.1:7999"


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())}")


@pytest.fixture
def client(keys):
    app = Starlette(
        routes=[Route("/{path:path}", echo, methods=["GET", "POST"])],
        middleware=[Middleware(Gate, keys=keys, language=lambda: "zh-CN")],
    )
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


@pytest.fixture
def known(client, keys):
    """The same client after it showed the token."""
    assert client.get(keys.url.split("7999")[1]).status_code == 303
    return client


REFUSALS = [
    ("GET", "/", {"host": "evil.example"}, 400),
    ("GET", "/", {"host": "127.0.0.1"}, 400),
    ("GET", "/", {"host": "127.0.0.1:80"}, 400),
    ("GET", "/", {"host": "127.0.0.1.evil.example:7999"}, 400),
    ("GET", "/", {"host": ""}, 400),
    ("POST", "/gradio_api/queue/join", {"origin": "http://evil.example"}, 403),
    ("POST", "/gradio_api/queue/join", {"origin": "null"}, 403),
    ("POST", "/gradio_api/queue/join", {"origin": "http://127.0.0.1:80"}, 403),
    ("POST", "/gradio_api/queue/join", {"origin": "https://127.0.0.1:7999"}, 403),
    ("POST", "/gradio_api/component_server", {"sec-fetch-site": "cross-site"}, 403),
    ("POST", "/x", {"sec-fetch-site": "same-site"}, 403),
    ("GET", "/gradio_api/file=http://evil.example/x", {}, 403),
    ("GET", "/gradio_api/proxy=http://evil.example/x", {}, 403),
    ("GET", "/gradio_api/deep_link", {}, 403),
    ("POST", "/x", {"content-length": "99999999"}, 413),
    ("POST", "/x", {"content-length": "-1"}, 413),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), REFUSALS)
def test_refused_even_with_the_cookie(known, method, path, headers, status):
    answer = known.request(method, path, headers=headers)
    assert answer.status_code == status
    assert_hardened(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/config"), ("GET", "/?token=wrong"), ("GET", "/?token="),
     ("POST", "/gradio_api/queue/join"),
     ("GET", "/gradio_api/heartbeat/x"), ("POST", "/gradio_api/startup-events"), ("GET", "/?token=%E4%BD%A0")],
)  # fmt: skip
def test_without_a_cookie_nothing_is_served(client, method, path):
    answer = client.request(method, path, headers={"origin": f"http://{HOST}"} if method == "POST" else {})
    assert answer.status_code == 401
    assert "Finetune Studio" in answer.text
    assert 'lang="zh-CN"' in answer.text
    assert_hardened(answer)


def test_gradio_may_ask_itself_at_its_start(client):
    assert client.get("/gradio_api/startup-events").status_code == 200


def test_the_splash_may_ask_whether_the_app_is_there(client):
    answer = client.get("/ready")
    assert (answer.status_code, answer.content) == (204, b"")
    assert client.get("/ready", headers={"host": "evil.example"}).status_code == 400


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


def test_an_own_post_passes_with_and_without_origin(known):
    assert known.post("/x", content=b"abc", headers={"origin": f"http://{HOST}"}).text == "3"
    assert known.post("/x", content=b"abc").text == "3"


def test_cookies_are_signed_dated_and_survive_a_restart(keys, workspace):
    cookie = keys.redeem(keys.url.partition("token=")[2])
    name = keys.cookie_name
    assert keys.admits({name: cookie})
    assert Keys(workspace.root, 7999).admits({name: cookie})
    body, _, signature = cookie.rpartition(".")
    old = keys._sign(f"{int(time.time()) - gate.SESSION_S - 5}.a")
    for forged in ("", "x", body, f"{body}.{'0' * 64}", f"9{body}.{signature}", old):
        assert not keys.admits({name: forged}), forged
    assert not keys.admits({})


def test_a_body_in_chunks_is_cut_off(known, monkeypatch):
    monkeypatch.setattr(gate, "BODY_BYTES", 1000)
    answered = []
    try:
        answered.append(known.post("/x", content=(b"x" * 400 for _ in range(5))).text)
    except Exception as error:  # noqa: BLE001 - the app ends with its framework's own ClientDisconnect
        assert "Disconnect" in type(error).__name__
    assert answered == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_the_files_are_private(keys, workspace):
    keys.write_address()
    for name in ("gate.key", "address.json"):
        assert stat.S_IMODE((workspace.root / name).stat().st_mode) == 0o600


def assert_hardened(answer) -> None:
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
