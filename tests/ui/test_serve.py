"""Serving: a page at once, the app behind its gate on the same port, an end that leaves nothing behind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import LANGUAGES
from studio.machine.settings import read_settings
from studio.machine.workspace_lock import read_address
from studio.ui.api import Api
from studio.ui.auth.headers import SECURITY_HEADERS
from studio.ui.serve import serve
from studio.ui.splash import FIRST_PORT, answers, close_splash, likely_ports, open_splash, splash_page


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    """Return status, headers and body of one request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(
        method, path, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def served(fake_desk, workspace, free_port):
    """A function that starts the window with the desk of canned answers and returns its thread and its stop."""
    stopped = threading.Event()
    options = {"port": free_port, "open_browser": False, "language": "en", "stopped": stopped}
    thread = threading.Thread(target=serve, args=(lambda: fake_desk, workspace), kwargs=options)
    thread.start()
    yield thread, stopped
    stopped.set()
    thread.join(20)


def wait_until_ready(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if ask(port, "/ready")[0] == 204:
                return
        except OSError:
            pass  # between the splash and the app nobody listens for a moment
        time.sleep(0.05)
    raise AssertionError("the app did not come")


def test_the_window_from_start_to_end(capsys, served, workspace, free_port):
    thread, stopped = served
    address = workspace.root / "address.json"
    wait_until_ready(free_port)
    url = json.loads(address.read_text(encoding="utf-8"))["url"]
    assert url in capsys.readouterr().out
    assert ask(free_port, "/")[0] == 401
    status, headers, _ = ask(free_port, url.partition(str(free_port))[2])
    assert status == 303
    cookie = headers["set-cookie"].partition(";")[0]
    assert json.loads(address.read_text(encoding="utf-8"))["url"] != url, "a fresh token for the next browser"

    status, headers, _ = ask(free_port, "/", cookie=cookie)
    assert status == 200
    assert all(headers[name] == value for name, value in SECURITY_HEADERS.items())
    config = json.loads(ask(free_port, "/config", cookie=cookie)[2])
    assert not config["show_error"] and config["enable_queue"] is not False
    assert not config.get("run_history") and not config["footer_links"]
    assert not config.get("is_space") and not config["analytics_enabled"]
    public = {item["api_name"] for item in config["dependencies"] if item["api_visibility"] != "private"}
    assert public <= {name for name in vars(Api) if name[0] != "_"}, "the programs' endpoints alone"

    join = json.dumps({"data": [], "fn_index": 0, "session_hash": "x"}).encode()
    kind = {"content_type": "application/json"}
    foreign = kind | {"origin": "http://evil.example"}
    assert ask(free_port, "/gradio_api/queue/join?", "POST", join, **kind)[0] == 401
    refused = ask(free_port, "/gradio_api/queue/join?", "POST", join, cookie=cookie, **foreign)
    assert refused[0] == 403
    for path in ("/openapi.json", "/docs", "/gradio_api/file=" + str(workspace.root / "gate.key")):
        assert ask(free_port, path, cookie=cookie)[0] in (403, 404), path

    stopped.set()
    thread.join(15)
    assert not thread.is_alive()
    assert not address.exists()


@pytest.mark.computing
def test_a_restart_keeps_the_port(served, fake_desk, workspace, free_port):
    thread, stopped = served
    wait_until_ready(free_port)
    fake_desk.restarting = True
    stopped.set()
    thread.join(15)
    assert likely_ports(workspace)[0] == free_port


def test_a_taken_port_is_refused(workspace, fake_desk):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert answers(port)
        with pytest.raises(StudioError) as refused:
            serve(lambda: fake_desk, workspace, port=port, open_browser=False, language="en")
    assert refused.value.exit_code == 2
    assert not (workspace.root / "address.json").exists()


def test_the_splash_answers_its_own_host_only(free_port):
    splash = open_splash([free_port], "en")
    threading.Thread(target=splash.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    status, headers, body = ask(free_port, "/?token=x")
    assert (status, headers["Cache-Control"]) == (503, "no-store")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "http" not in body, "it loads nothing"
    assert ask(free_port, "/", host="evil.example")[0] == 400
    close_splash(splash)
    assert not answers(free_port)


def test_who_waits_for_the_app_hears_when_the_splash_makes_room(free_port):
    splash = open_splash([free_port], "en")
    threading.Thread(target=splash.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    assert ask(free_port, "/leaving", host="evil.example")[0] == 400, "nobody else is made to wait"
    heard: list[int] = []
    waiting = threading.Thread(target=lambda: heard.append(ask(free_port, "/leaving")[0]), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and heard == []
    assert ask(free_port, "/ready")[0] == 503, "others are answered meanwhile"
    close_splash(splash)
    waiting.join(5)
    assert heard == [503]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_splash_speaks(language):
    page = splash_page(language)
    assert f'<html lang="{language}"' in page and "{{" not in page


def test_after_a_crash_the_same_port_comes_first(workspace):
    assert likely_ports(workspace)[0] == FIRST_PORT
    address = workspace.root / "address.json"
    address.write_text('{"url": "http://127.0.0.1:7905/?token=x", "pid": 1}', encoding="utf-8")
    assert likely_ports(workspace)[:2] == [7905, FIRST_PORT]
    for broken in ("", "[]", '{"url": 3}', '{"url": "x"}', "[" * 200_000):
        address.write_text(broken, encoding="utf-8")
        assert likely_ports(workspace)[0] == FIRST_PORT
        assert read_address(workspace) == ""


@pytest.mark.parametrize("words", ["", "[]", '{"language": "xx"}', "{"])
def test_damaged_settings_count_as_none(workspace, words):
    workspace.settings.write_text(words, encoding="utf-8")
    assert "language" not in read_settings(workspace)


def test_the_splash_needs_no_gradio(tmp_path):
    root = Path(__file__).resolve().parents[2]
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}]\nimport studio.ui.serve\nprint('gradio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == "False", done.stderr
