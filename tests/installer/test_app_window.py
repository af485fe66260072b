"""How the studio opens: which browser takes a window of its own, what happens without one, and coming to the front."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from studio.installer import app_window
from studio.installer.app_window import find_browser, focus_window, open_window

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


WINDOWS = """0x01 0 org.gnome.Nautilus.Nautilus host Finetune Studio
0x02 0 code.Code host run.py - Finetune Studio - Visual Studio Code
0x03 0 google-chrome (/home/a b).Google-chrome host 63% · Finetune Studio
0x04 0 Navigator.firefox host Mozilla Firefox
"""
WMCTRL = 'case "$1" in -lx) cat "$HERE/windows";; *) echo "$@" >> "$HERE/shown";; esac'
XDOTOOL = """case "$1 $2" in
"search --name") printf '1\\n2\\n3\\n';;
"search --class") printf '3\\n4\\n';;
*) echo "$@" >> "$HERE/shown";;
esac"""


@pytest.mark.parametrize(
    ("name", "script", "shown"),
    [("wmctrl", WMCTRL, "-ia 0x03"), ("xdotool", XDOTOOL, "windowactivate 3")],
    ids=["wmctrl", "xdotool"],
)
def test_only_a_browsers_window_comes_to_the_front(tmp_path, name, script, shown):
    """A file manager or an editor with a folder of that name open would leave the person without a page."""
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\nHERE={tmp_path}\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "windows").write_text(WINDOWS, encoding="utf-8")
    found = DESKTOP | {"PATH": str(tmp_path)}
    assert focus_window(found, "linux")
    assert (tmp_path / "shown").read_text(encoding="utf-8").strip() == shown
    if name == "wmctrl":
        (tmp_path / "windows").write_text("".join(WINDOWS.splitlines(keepends=True)[:2]), encoding="utf-8")
        assert not focus_window(found, "linux"), "a page opens instead"


def test_without_a_program_that_knows_the_windows_none_comes_to_the_front():
    assert not focus_window(DESKTOP, "linux", which())
    assert not focus_window({}, "linux", which("xdotool")) and not focus_window({}, "darwin", which())
