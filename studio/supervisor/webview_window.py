"""The studio in a window of pywebview, where that is installed: `python -m studio.supervisor.webview_window ADDRESS`.

Its loop must own the main thread, so the window is a process of its own, which the supervisor starts.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys

from studio.core.errors import StudioError
from studio.core.i18n import choose_language, load_catalogue, text
from studio.installer.app_window import open_window

PACKAGE = "webview"
SIZE = (1320, 900)


def require_webview() -> None:
    """Raise StudioError where pywebview is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise StudioError(text("cli.window"), text("cli.window.why"), text("cli.window.fix"))


def open_webview(address: str) -> subprocess.Popen:
    """Start the window on `address`; closing it leaves the studio on."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "studio.supervisor.webview_window", address],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the console is the supervisor's
    )


def main(address: str) -> int:
    """Show `address` until the window is closed; in the browser where the system has nothing to make a window with."""
    import webview

    logging.getLogger("pywebview").setLevel(
        logging.CRITICAL
    )  # a traceback for each toolkit that is not there
    width, height = SIZE
    webview.create_window("Finetune Studio", address, width=width, height=height, text_select=True)
    # Not private: the cookie that the page got keeps the window known after a restart of the studio.
    try:
        webview.start(private_mode=False)
    except webview.errors.WebViewException:  # Linux without Qt and GTK
        say = load_catalogue(choose_language()).say
        print(say(text("cli.window.toolkit")), file=sys.stderr, flush=True)
        open_window(address)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
