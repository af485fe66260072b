"""Whether the hub or its mirror answers, asked of a server of our own."""

import base64
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from studio.machine.probes.hub import HUB, ask_hub


@pytest.fixture
def mirror():
    """A mirror that knows one page; its answer's code is the first part of the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            first = self.path.split("/")[1]
            signed = self.headers["Authorization"] == "Basic " + base64.b64encode(b"wu:se@cret").decode()
            self.send_response(int(first) if first.isdigit() else 200 if signed else 500)
            self.end_headers()

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code, said", [(200, "ok"), (401, "ok"), (503, "HTTP 503")])
def test_a_mirror_answers(mirror, monkeypatch, code, said):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address = f"{mirror}/{code}"
    assert ask_hub(environment={"HF_ENDPOINT": address + "/"}) == (said, address)
    assert ask_hub(address, environment={"HF_ENDPOINT": HUB}) == (said, address)


def test_a_server_of_another_kind_says_so(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"220 mail ready\r\n")

        threading.Thread(target=greet, daemon=True).start()
        said, _ = ask_hub(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=5)
    assert "220 mail" in said


def test_no_answer_is_an_error_text(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    said, _ = ask_hub("http://127.0.0.1:9", timeout_s=2)
    assert said and said != "ok"
    assert ask_hub("file:///etc/passwd")[0] == "an address begins with https:// or http://"


def test_a_name_and_password_are_sent_and_not_shown(mirror, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address = mirror.replace("://", "://wu:se%40cret@") + "/signed"
    assert ask_hub(environment={"HF_ENDPOINT": address}) == ("ok", f"{mirror}/signed")
