"""The client of an OpenAI-compatible address, against a real server: what is sent, and whom it refuses."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from studio.core.errors import StudioError
from studio.hub.chat_client import KEY_VARIABLE, ChatClient

QUESTION = [{"role": "user", "content": "good?"}]


@pytest.fixture
def server():
    """A function `serve(**answers) -> address`; `serve.seen` are the requests: path, headers, body."""
    servers = []

    def serve(**answers):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body):
                serve.seen.append((self.path, dict(self.headers), body))
                status, content = answers.get(self.path.rsplit("/", 1)[1], (404, b"gone"))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *words):
                pass

        found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        servers.append((found, thread))
        return f"http://127.0.0.1:{found.server_port}/v1"

    serve.seen = []
    yield serve
    for found, thread in servers:
        found.shutdown()
        found.server_close()
        thread.join()


def say(words: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": words}}]}).encode()


def test_a_question_is_answered_by_the_model_that_is_listed(server, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret-key")
    address = server(models=(200, b'{"data": [{"id": "judge-1"}]}'), completions=(200, say("Score: 7")))
    client = ChatClient(address + "/")
    assert client.ask(QUESTION, max_tokens=9) == "Score: 7"
    (_, _, none), (path, headers, body) = server.seen
    assert none is None and path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret-key"
    assert body == {"model": "judge-1", "messages": QUESTION, "temperature": 0, "max_tokens": 9}


def test_a_key_that_is_given_goes_first_and_is_told_to_nobody(server, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "other-key")
    address = server(completions=(401, b"no such key: given-key"))
    with pytest.raises(StudioError) as refused:
        ChatClient(address, "wise", " given-key ").ask(QUESTION, max_tokens=9)
    assert server.seen[0][1]["Authorization"] == "Bearer given-key"
    assert "no such key: …" in str(refused.value) and "given-key" not in str(refused.value)


def test_a_key_that_would_be_another_header_is_refused(server):
    with pytest.raises(StudioError) as refused:
        ChatClient(server(), "wise", "key\r\nHost: elsewhere")
    assert refused.value.what.id == "chat_client.key" and not server.seen


def test_without_a_key_none_is_sent(server, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    client = ChatClient(server(completions=(200, say("x"))), "named")
    assert client.ask(QUESTION, max_tokens=1) == "x"
    assert "Authorization" not in server.seen[0][1] and server.seen[0][2]["model"] == "named"


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        ((401, b"who are you"), "chat_client.status"),
        ((302, b""), "chat_client.status"),
        ((200, b"<html>"), "chat_client.odd"),
        ((200, b'{"choices": []}'), "chat_client.odd"),
    ],
)
def test_what_the_address_does_wrong_is_said(server, answer, id):
    client = ChatClient(server(completions=answer), "named")
    with pytest.raises(StudioError) as refused:
        client.ask(QUESTION, max_tokens=1)
    assert refused.value.what.id == id and refused.value.exit_code == 1
    assert len(server.seen) == 1, "nobody is led on"


def test_an_address_that_is_silent_is_said():
    with pytest.raises(StudioError) as refused:
        ChatClient("http://127.0.0.1:1/v1", "named").ask(QUESTION, max_tokens=1)
    assert refused.value.what.id == "chat_client.silent"


@pytest.mark.parametrize(
    ("address", "id"),
    [
        ("ftp://127.0.0.1/v1", "address"), ("file:///etc/passwd", "address"), ("http://", "address"),
        ("http://user:word@127.0.0.1/v1", "address"), ("http://127.0.0.1/v1 x", "address"),
        ("http://8.8.8.8/v1", "open"),
    ],
)  # fmt: skip
def test_addresses_that_are_never_asked(address, id):
    with pytest.raises(StudioError) as refused:
        ChatClient(address, "named")
    assert refused.value.what.id == f"chat_client.{id}"
