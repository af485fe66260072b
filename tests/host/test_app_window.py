"""How the studio opens: which browser takes a window of its own, what happens without one, and coming to the front."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from studio.host import app_window
from studio.host.app_window import find_browser, focus_window, open_window

DESKTOP = {"DISPLAY": ":0", "PATH": "/bin"}


@pytest.fixture(autouse=True)
def not_root(monkeypatch):
    monkeypatch.setattr(app_window.os, "geteuid", lambda: 1000)


def which(*names: str):
    return lambda name, path=None: f"/bin/{name}" if name in names else None


def test_on_linux_the_first_of_the_known_browsers_is_taken():
    assert find_browser(DESKTOP, "linux", which("chromium", "microsoft-edge")) == ["/bin/chromium"]
    assert find_browser(DESKTOP | {"DISPLAY": "", "WAYLAND_DISPLAY": "w"}, "linux", which("brave-browser"))
    assert find_browser(DESKTOP, "linux", which("firefox")) is None
    assert find_browser({"PATH": "/bin"}, "linux", which("chromium")) is None, "no display"
    assert find_browser(DESKTOP | {"WSL_DISTRO_NAME": "u"}, "linux", which("chromium")) is None


def test_root_has_no_such_browser(monkeypatch):
    monkeypatch.setattr(app_window.os, "geteuid", lambda: 0)
    assert find_browser(DESKTOP, "linux", which("chromium")) is None


def test_flatpaks_are_found_by_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(app_window, "FLATPAK_FOLDERS", (str(tmp_path),))
    program = tmp_path / "org.chromium.Chromium"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    assert find_browser(DESKTOP, "linux", which()) == [str(program)]


def test_on_windows_the_registry_goes_before_the_usual_places(tmp_path, monkeypatch):
    edge = tmp_path / "Edge" / "msedge.exe"
    place = tmp_path / "x86" / Path(*app_window.WINDOWS_PLACES[0].split("\\"))
    for file in (edge, place):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
    monkeypatch.setattr(app_window, "_registered", lambda name: str(edge) if name == "msedge.exe" else "")
    assert find_browser({}, "win32") == [str(edge)]
    monkeypatch.setattr(app_window, "_registered", lambda name: "")
    monkeypatch.setattr(
        app_window, "WINDOWS_PLACES", (os.path.join(*app_window.WINDOWS_PLACES[0].split("\\")),)
    )
    assert find_browser({"ProgramFiles(x86)": str(tmp_path / "x86")}, "win32") == [str(place)]
    assert find_browser({}, "win32") is None


def test_on_a_mac_the_program_inside_of_the_bundle_is_started(tmp_path, monkeypatch):
    program = tmp_path / "Google Chrome.app" / "Contents" / "MacOS" / "Google Chrome"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"")
    monkeypatch.setattr(app_window, "_home", lambda name: str(tmp_path))
    assert find_browser({}, "darwin") == [str(program)]


def test_a_browser_that_does_not_start_and_none_at_all_leave_the_default_one(monkeypatch):
    opened, started = [], []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(app_window, "find_browser", lambda environment: ["/nowhere/browser"])
    assert open_window("http://127.0.0.1:1/") and opened == ["http://127.0.0.1:1/"]
    monkeypatch.setattr(app_window.subprocess, "Popen", lambda command, **_: started.append(command))
    assert open_window("http://127.0.0.1:2/") and started[0][1] == "--app=http://127.0.0.1:2/"
    assert open_window("http://127.0.0.1:3/", own=False) and len(started) == 1
    assert opened[1:] == ["http://127.0.0.1:3/"]


def test_an_open_window_comes_to_the_front_where_a_program_can_do_that(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(app_window, "_ask", lambda command: asked.append(command) or "xdotool" in command[0])
    assert focus_window(DESKTOP, "linux", which("wmctrl", "xdotool")) and len(asked) == 2
    assert not focus_window(DESKTOP, "linux", which("wmctrl"))
    assert not focus_window({}, "linux", which("xdotool")) and not focus_window({}, "darwin", which())
