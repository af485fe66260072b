"""The window's page, as the supervisor shows it: told and opened once, and again where its address has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.private_file import write_private
from studio.installer.app_window import focus_window, open_window
from studio.installer.install_page import ADDRESS_VARIABLE
from studio.machine.settings import read_settings
from studio.machine.workspace import Workspace
from studio.machine.workspace_lock import read_address
from studio.supervisor.child_process import TICK_S
from studio.supervisor.webview_window import open_webview

JOIN_S = 20.0


class Page:
    """Call it every tick: it tells the address to `tell` once the child has one, and opens it.

    `--window` opens it in a process of pywebview (webview_window.py), else the settings say how it opens. Where
    somebody waits for the address in a file (ADDRESS_VARIABLE), they show it themselves.
    """

    def __init__(self, workspace: Workspace, command: Sequence[str], tell: Callable[[Text], None]) -> None:
        self.workspace, self.command, self.tell = workspace, command, tell
        self.address = ""
        self._known = False

    def look_again(self) -> None:
        """Ask for the address anew, for a new child: pages that are open ask at the last one's port alone."""
        self._known = False

    def __call__(self) -> None:
        """Look whether there is an address, and show one that no open page has."""
        if self._known:
            return
        address = read_address(self.workspace)
        if not address:
            return
        before, self.address, self._known = self.address, address, True
        if before and urlsplit(before).port == urlsplit(address).port:
            return
        self.tell(text("supervise.open", address=address))
        # Who waited for it may be gone, or a program not start: the browser is left, and the studio goes on.
        with suppress(OSError):
            if self._is_shown():
                return
        if "--no-browser" not in self.command:
            open_window(address, own=read_settings(self.workspace).get("window", "app") == "app")

    def _is_shown(self) -> bool:
        """Hand the address to who shows it, if there is anybody. Raises OSError."""
        waiting = os.environ.get(ADDRESS_VARIABLE)
        if waiting:
            write_private(Path(waiting), self.address.encode())
        elif "--window" in self.command:
            open_webview(self.address)
        return bool(waiting) or "--window" in self.command


def join(workspace: Workspace, command: Sequence[str], tell: Callable[[Text], None]) -> int:
    """Show the page of the studio that already works in `workspace`; wait for it when it is still starting.

    An open page comes to the front where the system allows that; else a further one opens, and the open one says so.
    """
    shows = "--no-browser" not in command and ADDRESS_VARIABLE not in os.environ
    if shows and read_address(workspace) and focus_window():
        return 0
    page = Page(workspace, command, tell)
    deadline = time.monotonic() + JOIN_S
    while not page.address and time.monotonic() < deadline:
        page()
        time.sleep(TICK_S)
    if not page.address:
        what, why, fix = text("supervise.join"), text("supervise.join.why"), text("supervise.join.fix")
        raise StudioError(what, why, fix, exit_code=1)
    return 0
