"""How the supervisor shows the window: as the settings say, to whoever waits for its address, or an open one."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest

from studio.cli.main import main
from studio.core.errors import StudioError
from studio.installer.install_page import ADDRESS_VARIABLE
from studio.machine.settings import change_settings
from studio.supervisor import webview_window, window_page

ADDRESS = "http://127.0.0.1:9/?token=once"


def make_page(workspace, *command: str) -> window_page.Page:
    return window_page.Page(workspace, command, list().append)


@pytest.fixture
def shown(workspace, monkeypatch):
    """A studio that has an address; what was opened as (address, own window)."""
    opened: list = []
    monkeypatch.setattr(window_page, "open_window", lambda address, own: opened.append((address, own)))
    monkeypatch.setattr(window_page, "open_webview", lambda address: opened.append((address, "webview")))
    monkeypatch.setattr(window_page, "focus_window", lambda: False)
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    told = json.dumps({"url": ADDRESS, "pid": os.getpid()})
    (workspace.root / "address.json").write_text(told, encoding="utf-8")
    return opened


def test_it_opens_once_as_the_settings_say(workspace, shown):
    page = make_page(workspace, "studio")
    page()
    page()
    assert shown == [(ADDRESS, True)]
    change_settings(workspace, window="tab")
    make_page(workspace, "studio")()
    make_page(workspace, "studio", "--window")()
    make_page(workspace, "studio", "--no-browser")()
    assert shown[1:] == [(ADDRESS, False), (ADDRESS, "webview")]


def test_a_changed_port_is_told_and_opened_and_the_same_one_is_not(workspace, shown):
    """Pages that are open ask at the old port for ever."""
    heard: list = []
    page = window_page.Page(workspace, ["studio"], heard.append)
    page()
    for address in (ADDRESS.replace("once", "twice"), "http://127.0.0.1:10/?token=thrice"):
        told = json.dumps({"url": address, "pid": os.getpid()})
        (workspace.root / "address.json").write_text(told, encoding="utf-8")
        page()
        assert page.address != address, "no file is read while a child lives on"
        page.look_again()
        page()
    assert [where for where, _ in shown] == [ADDRESS, address]
    assert [message.values["address"] for message in heard] == [ADDRESS, address]


def test_whoever_waits_for_the_address_shows_it(workspace, shown, tmp_path, monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "address"))
    make_page(workspace, "studio")()
    assert (tmp_path / "address").read_text(encoding="utf-8") == ADDRESS and shown == []
    assert (tmp_path / "address").stat().st_mode & 0o777 == 0o600


def test_an_address_that_nobody_takes_is_shown_all_the_same(workspace, shown, tmp_path, monkeypatch):
    """Whoever waited has given up, or pywebview does not start: the studio works, and must not end for that."""

    def refuse(address):
        raise OSError("no such program")

    monkeypatch.setattr(window_page, "open_webview", refuse)
    make_page(workspace, "studio", "--window")()
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "gone" / "address"))
    make_page(workspace, "studio")()
    assert shown == [(ADDRESS, True)] * 2
    make_page(workspace, "studio", "--no-browser")()
    assert len(shown) == 2


def test_a_second_start_brings_the_open_window_to_the_front(workspace, shown, monkeypatch):
    assert window_page.join(workspace, ["studio"], list().append) == 0 and shown == [(ADDRESS, True)]
    monkeypatch.setattr(window_page, "focus_window", lambda: True)
    assert window_page.join(workspace, ["studio"], list().append) == 0 and len(shown) == 1
    monkeypatch.setattr(window_page, "focus_window", lambda: pytest.fail("no window was asked for"))
    assert window_page.join(workspace, ["studio", "--no-browser"], list().append) == 0


def test_an_installation_page_is_not_taken_for_the_studio(workspace, shown, tmp_path, monkeypatch):
    monkeypatch.setattr(window_page, "focus_window", lambda: pytest.fail("that is the page itself"))
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "address"))
    assert window_page.join(workspace, ["studio"], list().append) == 0 and (tmp_path / "address").exists()


def test_a_window_of_pywebview_is_refused_where_it_is_not_installed(workspace, monkeypatch, capsys):
    monkeypatch.setattr(webview_window, "PACKAGE", "no_such_webview")
    with pytest.raises(StudioError):
        webview_window.require_webview()
    assert main(["--window", "--workspace", str(workspace.root)]) == 2
    assert "pywebview" in capsys.readouterr().err


def test_the_window_of_pywebview_owns_the_main_thread_of_its_process(monkeypatch):
    called = []

    class Webview:
        create_window = staticmethod(lambda *words, **options: called.append(words))
        start = staticmethod(lambda **options: called.append(options))
        errors = SimpleNamespace(WebViewException=RecursionError)

    monkeypatch.setitem(sys.modules, "webview", Webview)
    assert webview_window.main(ADDRESS) == 0
    assert called == [("Finetune Studio", ADDRESS), {"private_mode": False}]


def test_where_pywebview_has_nothing_to_make_a_window_with_the_browser_shows_it(monkeypatch, capsys):
    class Webview:
        errors = SimpleNamespace(WebViewException=RecursionError)

        def create_window(*words, **options) -> None:
            return None

        def start(**options) -> None:
            raise RecursionError("You must have either QT or GTK")

    opened = []
    monkeypatch.setitem(sys.modules, "webview", Webview)
    monkeypatch.setattr(webview_window, "open_window", opened.append)
    assert webview_window.main(ADDRESS) == 0 and opened == [ADDRESS]
    told = capsys.readouterr().err
    assert "browser" in told and "Traceback" not in told
