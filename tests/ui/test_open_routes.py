"""What of Gradio is open at the two ports, asked of the real apps: every route it has, every number of a handler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace

import gradio as gr
import pytest
from gradio.routes import App
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from studio.core.i18n import load_catalogue, text
from studio.services.sharing import Sharing
from studio.ui.app import build, change_language
from studio.ui.auth.backends import Doors, LocalDoor, PhraseDoor
from studio.ui.auth.middleware import PATHS, Gate, _is_open
from studio.ui.listeners import make_guest_app

JOIN = "/gradio_api/queue/join"
OPEN = {
    "viewer": """/ /config /theme.css /favicon.ico /manifest.json /static/x /assets/x /gradio_api/theme.css
    /gradio_api/queue/join /gradio_api/queue/data /gradio_api/cancel /gradio_api/reset
    /gradio_api/heartbeat/x /gradio_api/app_id""",
    "owner": """/gradio_api/info /gradio_api/info/ /gradio_api/call/x /gradio_api/call/x/ /gradio_api/call/x/x
    /gradio_api/run/x /gradio_api/run/x/ /gradio_api/component_server
    /gradio_api/component_server/ /gradio_api/upload /gradio_api/upload_progress /gradio_api/file=x
    /gradio_api/startup-events""",
}
"""Gradio's routes that a page, or a program of the owner, needs. A new one of a later Gradio is to be looked at."""


class Ports:
    """Stands in for the listeners."""

    def start(self, role: str, way: str, port: int | None) -> int:
        return 7960

    def stop(self, role: str) -> None:
        return None


@pytest.fixture
def sharing(workspace):
    """Guests are let in."""
    found = Sharing(workspace)
    found.begin(Ports(), {"viewer": "lan"})
    yield found
    found.close()


@pytest.fixture
def owners(context):
    """The window's blocks, not yet served."""
    return build(context)


def serve(app, port: int) -> TestClient:
    return TestClient(
        app, base_url=f"http://127.0.0.1:{port}", follow_redirects=False, raise_server_exceptions=False
    )


def list_paths(routes, prefix: str = "") -> Iterator[str]:
    """Yield every path of an app, with x for what stands in braces."""
    for route in routes:
        if hasattr(route, "original_router"):
            inner = prefix + getattr(route.include_context, "prefix", "")
            yield from list_paths(route.original_router.routes, inner)
        else:
            yield prefix + re.sub(r"\{[^}]*\}", "x", route.path)


def test_no_route_of_gradio_is_open_but_those_that_pages_need(owners):
    app = App.create_app(owners, app_kwargs={"docs_url": None, "redoc_url": None, "openapi_url": None})
    paths = set(list_paths(app.routes))
    assert len(paths) > 50 and JOIN in paths
    opened = {role: {path for path in paths if path == "/" or _is_open(path, role)} for role in PATHS}
    assert opened["viewer"] <= set(OPEN["viewer"].split()), opened["viewer"] - set(OPEN["viewer"].split())
    known = set((OPEN["viewer"] + " " + OPEN["owner"]).split())
    assert opened["owner"] <= known, opened["owner"] - known


@pytest.mark.computing
def test_no_number_of_a_handler_is_the_guests_but_their_own(context, owners, keys, sharing):
    """Every handler of the window by its number, at both ports, with a guest's cookie and with none."""
    owners.queue(api_open=False)
    local = Middleware(Gate, doors=Doors({7999: LocalDoor(keys)}), language=lambda: "en")
    kwargs = {"docs_url": None, "redoc_url": None, "openapi_url": None, "middleware": [local]}
    window = serve(App.create_app(owners, app_kwargs=kwargs), 7999)
    guests = make_guest_app(context, Doors({7960: PhraseDoor(sharing, "viewer", 7960)}))
    guest = serve(guests, 7960)
    login = guest.post(
        "/login",
        data={"phrase": sharing.view().openings[0].phrase},
        headers={"origin": "http://127.0.0.1:7960"},
    )
    cookie = login.headers["set-cookie"].partition(";")[0]
    stranger = serve(guests, 7960)
    mine = {part["id"] for part in json.loads(guest.get("/config").content)["dependencies"]}
    numbers = [fn for fn in owners.fns]
    assert len(numbers) > 60 and len(mine) < 20
    guest_numbers = 0
    for number in [*numbers, -1, 10**9, None, 1.5, "start"]:
        body = {"data": [], "fn_index": number, "session_hash": "g", "trigger_id": None}
        assert window.post(JOIN, json=body, headers={"cookie": cookie}).status_code == 401
        assert stranger.post(JOIN, json=body).status_code in (401, 429)
        if number not in mine:
            guest_numbers += 1
            assert guest.post(JOIN, json=body, headers={"cookie": cookie}).status_code in range(400, 501)
    assert guest_numbers > 50
    assert context.desk.started == []


def test_each_guest_is_spoken_to_in_the_language_of_the_browser(context, sharing):
    app = make_guest_app(context, Doors({7960: PhraseDoor(sharing, "viewer", 7960)}))
    with serve(app, 7960) as guest:
        phrase = sharing.view().openings[0].phrase
        login = guest.post("/login", data={"phrase": phrase}, headers={"origin": "http://127.0.0.1:7960"})
        cookie = {"cookie": login.headers["set-cookie"].partition(";")[0]}
        for accepted, language in (("zh-TW,zh;q=0.9", "zh-CN"), ("en-GB", "en"), ("fr", "en"), (None, "en")):
            headers = cookie | ({"accept-language": accepted} if accepted else {})
            words = load_catalogue(language).say(text("ui.guest.badge"))
            page, config = guest.get("/", headers=headers), guest.get("/config", headers=headers)
            assert page.status_code == config.status_code == 200
            assert words in json.dumps(config.json(), ensure_ascii=False), accepted
            number = config.json()["dependencies"][0]["id"]
            body = {"data": [None], "fn_index": number, "session_hash": f"s{accepted}", "trigger_id": None}
            assert guest.post(JOIN, json=body, headers=headers).status_code == 200


def test_what_a_card_asks_of_the_server_past_the_queue_serves_the_owner_alone(owners):
    functions = [fn for block in owners.blocks.values() for fn in getattr(block, "server_fns", None) or []]
    assert len(functions) == 2
    for role in ("viewer", "", "Owner"):
        request = SimpleNamespace(scope={"studio.role": role, "studio.caller": "x"})
        for fn in functions:
            with pytest.raises(gr.Error):
                fn(request, {})


@pytest.mark.computing
def test_another_language_keeps_every_handler_with_its_guard(context, owners):
    owners.config = owners.get_config_file()
    before = {number: fn.fn for number, fn in owners.fns.items()}
    change_language(context, owners, "zh-CN")
    assert context.language == "zh-CN"
    assert {number: fn.fn for number, fn in owners.fns.items()} == before
    numbers = {part["id"] for part in owners.config["dependencies"]}
    assert numbers == set(before), "the page names no handler of the window that was built for its words"
