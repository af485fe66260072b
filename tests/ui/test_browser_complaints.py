"""What the tests' browser complains about: a stream that a living page loses, not one that is asked for on leaving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from studio.ui.shell.routes import STREAMS
from tests.ui.browser import PATIENCE_MS, Window
from tests.ui.conftest import describe_pages

PAGE = f"""<!doctype html><script>
  const read = async (answer) => {{
    const reader = answer.body.getReader();
    await reader.read();
    await fetch("/cut");
    await reader.read();
  }};
  const lose = async () => {{
    await fetch("/gone");
    await fetch("{STREAMS[0]}").then(read).catch((error) => console.error(error));
  }};
  addEventListener("beforeunload", () => lose().then(() => fetch("/lost")));
</script>"""
LOSES = ["404 (Not Found)", "net::ERR_INCOMPLETE_CHUNKED_ENCODING", "TypeError: network error"]


class Cutter(BaseHTTPRequestHandler):
    """Ends each stream in its middle; the next page comes when the one before has lost its own."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == STREAMS[0]:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"4\r\nhalf\r\n")
            self.server.cut.acquire(timeout=PATIENCE_MS / 1000)
            self.close_connection = True
            return
        if self.path == "/cut":
            self.server.cut.release()
        if self.path == "/lost":
            self.server.lost.release()
        if self.path == "/":
            self.server.lost.acquire(timeout=PATIENCE_MS / 1000)
        body = PAGE.encode() if self.path == "/" else b""
        self.send_response(404 if self.path == "/gone" else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cutter)
    server.cut, server.lost = threading.Semaphore(0), threading.Semaphore(1)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_what_a_page_loses_as_it_leaves_is_no_complaint(chromium, workspace, address):
    window = Window(url=address, workspace=workspace, browser=chromium)
    page = window.watch(chromium.new_context().new_page())
    page.goto(address)
    for _ in range(2):  # the page after the one that left is heard again
        page.evaluate("lose()")
        assert len(window.complaints) == len(LOSES)
        assert all(end in one for one, end in zip(window.complaints, LOSES, strict=True)), window.complaints
        window.complaints.clear()
        page.reload()
        assert window.complaints == []


def test_a_page_that_cannot_be_described_does_not_end_the_tests():
    class Gone:
        @property
        def contexts(self):
            raise RuntimeError("no browser")

    assert list(describe_pages(Gone())) == [
        ("pages", "they could not be described: RuntimeError('no browser')")
    ]
