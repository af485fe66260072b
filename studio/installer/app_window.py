"""Opens the studio in a window of its own: a browser that can do so without its bars, else the person's browser.

Edge, Chrome and Chromium take `--app=ADDRESS`; Edge comes with Windows. An open window is brought to the front instead
where the system lets another program do that. Standard library only, imports nothing of studio, parses and runs on
Python 3.8: the page that shows an installation opens by it too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path

TITLE = "Finetune Studio"
WINDOWS_NAMES = ("msedge.exe", "chrome.exe", "brave.exe")
WINDOWS_PLACES = (
    r"Microsoft\Edge\Application\msedge.exe",
    r"Google\Chrome\Application\chrome.exe",
    r"BraveSoftware\Brave-Browser\Application\brave.exe",
    r"Chromium\Application\chrome.exe",
)
WINDOWS_ROOTS = ("ProgramFiles(x86)", "ProgramFiles", "LOCALAPPDATA")
REGISTERED = r"SOFTWARE\Microsoft\Windows\CurrentVersion\App Paths" + "\\"
MAC_NAMES = ("Google Chrome", "Microsoft Edge", "Chromium", "Brave Browser")
LINUX_NAMES = (
    "google-chrome",
    "google-chrome-stable",
    "chromium",
    "chromium-browser",
    "microsoft-edge",
    "microsoft-edge-stable",
    "brave-browser",
)
FLATPAKS = ("com.google.Chrome", "org.chromium.Chromium", "com.microsoft.Edge", "com.brave.Browser")
FLATPAK_FOLDERS = ("/var/lib/flatpak/exports/bin", "~/.local/share/flatpak/exports/bin")
BROWSER_CLASSES = ("Chrome_WidgetWin", "MozillaWindowClass", "WindowsForms")
"""Windows' names for the windows of Edge and Chrome, of Firefox, and of pywebview."""
LINUX_CLASSES = ("chrom", "edge", "brave", "vivaldi", "opera", "firefox", "navigator", "webview")
"""Parts of X's names for the windows of browsers and of pywebview, in small letters."""
SIZE = "1320,900"
ASK_S = 3.0
"""How long a program that knows the windows is waited for."""


def open_window(address, own=True, environment=os.environ):
    """Show `address`, in a window without bars where `own`; return whether any browser took it."""
    if own:
        command = find_browser(environment)
        if command is not None and _start(command + ["--app=" + address, "--window-size=" + SIZE]):
            return True
    return webbrowser.open(address)


def find_browser(environment=os.environ, system=sys.platform, which=shutil.which):
    """Return the command of a browser that takes --app, as a list; None where there is none.

    A Linux without a display has none, and a WSL shows its pages in the browser of Windows.
    """
    if system == "win32":
        found = [path for path in map(_registered, WINDOWS_NAMES) if path]
        roots = [environment[name] for name in WINDOWS_ROOTS if environment.get(name)]
        found += [os.path.join(root, place) for place in WINDOWS_PLACES for root in roots]
        return next(([path] for path in found if os.path.isfile(path)), None)
    if system == "darwin":
        places = [
            Path(root) / (name + ".app")
            for name in MAC_NAMES
            for root in ("/Applications", _home("Applications"))
        ]
        programs = [place / "Contents" / "MacOS" / place.stem for place in places]
        return next(([str(program)] for program in programs if program.is_file()), None)
    shown = environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    # These browsers refuse to start for root.
    if not shown or environment.get("WSL_DISTRO_NAME") or os.geteuid() == 0:
        return None
    for name in LINUX_NAMES:
        path = which(name, path=environment.get("PATH"))
        if path:
            return [path]
    folders = [os.path.expanduser(folder) for folder in FLATPAK_FOLDERS]
    places = [os.path.join(folder, name) for name in FLATPAKS for folder in folders]
    return next(([path] for path in places if os.access(path, os.X_OK)), None)


def focus_window(environment=os.environ, system=sys.platform, which=shutil.which):
    """Bring a browser's window whose title names the studio to the front; return whether there was one that could be.

    A file manager or an editor may show a folder of that name.
    """
    if system == "win32":
        return _focus_on_windows()
    if system == "darwin" or not environment.get("DISPLAY"):
        return False
    # On Wayland no program may do that to another; both see only windows of X there.
    for name, find, show in (
        ("wmctrl", _find_by_wmctrl, "-ia"),
        ("xdotool", _find_by_xdotool, "windowactivate"),
    ):
        path = which(name, path=environment.get("PATH"))
        if path and any(_ask([path, show, window]) is not None for window in find(path)):
            return True
    return False


def _home(name):
    return os.path.join(os.path.expanduser("~"), name)


def _registered(name):
    """Return the path that Windows knows a program by, "" where it does not."""
    import winreg

    for root in (winreg.HKEY_CURRENT_USER, winreg.HKEY_LOCAL_MACHINE):
        try:
            return winreg.QueryValue(root, REGISTERED + name).strip('"')
        except OSError:
            continue
    return ""


def _start(command):
    """Start a browser that outlives us; return whether it could be started."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        # A session of its own: Ctrl-C in our console is not meant for the browser.
        subprocess.Popen(command, start_new_session=True, **options)
    except OSError:
        return False
    return True


def _find_by_wmctrl(path):
    """Return the ids of the studio's windows. A line: id, desktop, instance.class, machine, title."""
    lines = [line.split(None, 3) for line in (_ask([path, "-lx"]) or "").splitlines()]
    return [
        words[0]
        for words in lines
        if len(words) == 4 and TITLE in words[3] and any(name in words[2].lower() for name in LINUX_CLASSES)
    ]


def _find_by_xdotool(path):
    titled = (_ask([path, "search", "--name", TITLE]) or "").split()
    browsers = (_ask([path, "search", "--class", "|".join(LINUX_CLASSES)]) or "").split()
    return [window for window in titled if window in browsers]


def _ask(command):
    """Return what a program prints; None where it fails, or does not answer."""
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        said = subprocess.check_output(command, timeout=ASK_S, **quiet)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.decode("utf-8", "replace")


def _focus_on_windows():
    user = ctypes.windll.user32
    found = []

    def look(window, _):
        title, kind = ctypes.create_unicode_buffer(512), ctypes.create_unicode_buffer(256)
        user.GetWindowTextW(window, title, 512)
        user.GetClassNameW(window, kind, 256)
        # "63% · Finetune Studio" in a window of its own, "Finetune Studio - Google Chrome" in a tab; the file manager
        # may show a folder of that name.
        if user.IsWindowVisible(window) and TITLE in title.value and kind.value.startswith(BROWSER_CLASSES):
            found.append(window)
        return True

    kind = ctypes.WINFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
    user.EnumWindows(kind(look), None)
    if not found:
        return False
    window = ctypes.c_void_p(found[0])
    if user.IsIconic(window):
        user.ShowWindow(window, 9)  # SW_RESTORE
    return bool(user.SetForegroundWindow(window))
