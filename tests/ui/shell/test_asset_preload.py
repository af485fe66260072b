"""Gradio's own files, early and for good; its import without the writing of stubs; the page's colours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from studio.ui.shell.asset_preload import (
    KEPT,
    FrontEnd,
    find_front_end,
    preload_links,
    read_asset,
    read_names,
)
from studio.ui.shell.routes import JOIN
from studio.ui.splash import close_splash, open_splash

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder():
    found = find_front_end()
    assert found is not None
    return found


@pytest.fixture
def names(folder):
    """What Gradio's first page names itself."""
    return read_names(folder, Path("/nowhere"))


def test_only_scripts_and_styles_of_gradio_are_read(folder, names):
    assert any(name.endswith(".js") for name in names) and any(name.endswith(".css") for name in names)
    content, kind = read_asset(folder, f"/assets/{names[0]}")
    assert content and kind.startswith("text/")
    for path in (
        "/assets/../index.html",
        "/assets/%2e%2e/x.js",
        "/assets/absent.js",
        "/",
        "/assets/",
        "/index.html",
    ):
        assert read_asset(folder, path) is None, path


def test_names_that_this_gradio_lacks_are_not_asked_for(folder, names, tmp_path):
    file = tmp_path / "front-end.json"
    for damaged in ("", "{", "[1, 2]", '["../../x.js", "absent-1.js"]'):
        file.write_text(damaged, encoding="utf-8")
        assert read_names(folder, file) == names
    file.write_text(json.dumps([names[0], "absent-1.js", '"><script>.js']), encoding="utf-8")
    assert read_names(folder, file) == [names[0]]
    assert 'rel="modulepreload" href="/assets/a.js"' in preload_links(["a.js"])
    assert read_names(None, file) == []


def test_the_splash_gives_the_files_meanwhile(names, tmp_path):
    splash = open_splash(range(7700, 7800), "en", "dark", tmp_path / "none")
    threading.Thread(target=splash.serve_forever, args=(0.05,), daemon=True).start()
    connection = HTTPConnection("127.0.0.1", splash.server_address[1], timeout=5)
    try:
        for _ in range(2):  # over one connection
            connection.request("GET", f"/assets/{names[0]}")
            answer = connection.getresponse()
            assert answer.status == 200 and answer.getheader("Cache-Control") == KEPT and answer.read()
        connection.request("GET", "/assets/absent.js")
        answer = connection.getresponse()
        page = answer.read().decode()
        assert answer.status == 503 and f"/assets/{names[0]}" in page and 'data-theme="dark"' in page
    finally:
        close_splash(splash)


def pass_through(file: Path, path: str, query: str = "", theme: str = "", *, status: int = 200):
    """Return what the middleware sends for one request."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def send(message):
        sent.append(message)

    part = FrontEnd(app, file=file, theme=lambda: theme)
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode()}
    asyncio.run(part(scope, None, send))
    if path.startswith("/assets/"):
        asyncio.run(part(scope | {"path": JOIN}, None, send))
    return sent[0]


def test_the_app_lets_browsers_keep_them_and_notes_which(names, tmp_path):
    file = tmp_path / "front-end.json"
    kept = pass_through(file, "/assets/Own-1.js")
    assert (b"cache-control", KEPT.encode()) in kept["headers"]
    assert "Own-1.js" in json.loads(file.read_text(encoding="utf-8")) and set(names) <= set(
        json.loads(file.read_text())
    )
    assert pass_through(file, "/assets/Own-1.js", status=404)["headers"] == []
    assert pass_through(file, "/config")["headers"] == []


@pytest.mark.parametrize(
    ("query", "theme", "place"),
    [
        ("", "", None),
        ("", "dark", "/?__theme=dark"),
        ("tab=runs&run=a+b", "light", "/?tab=runs&run=a+b&__theme=light"),
        ("__theme=dark&tab=home", "dark", None),
        ("__theme=dark&tab=home", "", "/?tab=home"),
        ("__theme=dark", "light", "/?__theme=light"),
        ("x=%0d%0aSet-Cookie:1", "dark", "/?x=%0D%0ASet-Cookie%3A1&__theme=dark"),
    ],
)
def test_a_page_is_drawn_in_the_chosen_colours_from_the_beginning(tmp_path, query, theme, place):
    answer = pass_through(tmp_path / "f", "/", query, theme)
    assert answer["status"] == (303 if place else 200)
    assert dict(answer["headers"]).get(b"location", b"").decode() == (place or "")


@pytest.mark.computing
def test_gradio_is_imported_whole_and_writes_nothing(tmp_path):
    code = """
import sys, pathlib
from studio.ui.shell.gradio_import import import_gradio
import_gradio()
import gradio, gradio.component_meta
root = pathlib.Path(gradio.__file__).parent
assert gradio.Textbox and not [f for f in sys.meta_path if type(f).__module__.startswith("studio")]
with gradio.Blocks() as blocks:
    gradio.Textbox().submit(lambda x: x)
assert gradio.component_meta.create_or_modify_pyi("no", "file", []) is None
assert not [name for name in sys.modules if name.startswith("pandas.")]
import pandas, threading
files = [getattr(module, "__file__", "") for module in list(sys.modules.values())]  # as inspect.getmodule asks all
assert files and not [name for name in sys.modules if name.startswith("pandas.")]
found = []
uses = [lambda: pandas.DataFrame, lambda: __import__("pandas").Series]
threads = [threading.Thread(target=lambda use=use: found.append(use())) for use in uses * 6]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert len(found) == 12 and pandas.DataFrame({"a": [1, 2]})["a"].sum() == 3
import pandas.api.types
assert pandas.api.types.is_list_like([]) and sys.modules["pandas"].DataFrame is pandas.DataFrame and pandas.__file__
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
