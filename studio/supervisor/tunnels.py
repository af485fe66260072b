"""The supervisor's tunnels: it starts those that the window asks for in share.json and answers in link.json.

They belong to the supervisor and not to the window, so that a link outlives a restart of the window; they end with it.
Each is a process (studio.ui.tunnel) that ends by itself when the supervisor is killed.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.atomic_files import LOG_LIMIT_BYTES, trim_log
from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.core.private_file import write_private
from studio.machine.addresses import list_addresses
from studio.machine.environment import prepare_environment
from studio.machine.workspace import Workspace
from studio.services.pass_phrase import make_phrase, matches
from studio.services.share_files import PHRASES_VARIABLE, SESSION_VARIABLE, link_file, read_state, state_file

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.5
FAREWELL_S = 1.0
AGAIN_S = (2.0, 5.0, 15.0, 60.0)
"""How long after each failure in a row a link is made again."""
FLAGS = {"viewer": ("--share", "--lan"), "owner": ("--share-owner",)}


@dataclass(slots=True)
class Tunnel:
    """One tunnel of one role: its process, what it said, and how often in a row it failed."""

    port: int
    process: subprocess.Popen | None = None
    program: int = 0
    """pid of the program that holds the link, which its parent takes along unless that was killed."""
    link: str = ""
    problem: str = ""
    failures: int = 0
    next_s: float = 0.0


class Tunnels:
    """Call it once a tick. `tell` is told of each link and its pass phrase once, for the terminal."""

    def __init__(self, workspace: Workspace, command: Sequence[str], tell: Callable[[Text], None]) -> None:
        self.workspace, self.tell = workspace, tell
        self.session = secrets.token_hex(8)
        # A phrase that a person at a terminal is to read must be known here, and no file may hold it.
        self.phrases = {role: make_phrase() for role, flags in FLAGS.items() if set(flags) & set(command)}
        self._tunnels: dict[str, Tunnel] = {}
        self._look_s = 0.0
        self._noted: dict[str, Mapping[str, Any]] = {}
        self._wanted: dict[str, Mapping[str, Any]] = {}
        self._seen = 0
        self._answered: dict[str, Any] = {}
        self._told: set[tuple[str, str]] = set()

    @property
    def environment(self) -> dict[str, str]:
        """What the window's process finds in its environment."""
        return {SESSION_VARIABLE: self.session, PHRASES_VARIABLE: json.dumps(self.phrases)}

    def __call__(self) -> None:
        """Start and end what the window wants started and ended, and say what became of it."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        self._read_wanted()
        ports = {role: one["port"] for role, one in self._wanted.items() if one["way"] == "tunnel"}
        for role, tunnel in list(self._tunnels.items()):
            if ports.get(role) != tunnel.port:
                _end(tunnel)
                del self._tunnels[role]
        for role, port in ports.items():
            tunnel = self._tunnels.setdefault(role, Tunnel(port))
            if tunnel.process is not None and tunnel.process.poll() is not None:
                _end(tunnel)
                tunnel.problem, tunnel.link = tunnel.problem or "ended", ""
                tunnel.next_s = now_s + AGAIN_S[min(tunnel.failures, len(AGAIN_S) - 1)]
                tunnel.failures += 1
            if tunnel.process is None and now_s >= tunnel.next_s:
                try:
                    self._begin(tunnel)
                except OSError:  # no process can be started, or no log be written: the studio itself goes on
                    tunnel.problem, tunnel.next_s = "program", now_s + AGAIN_S[-1]
        self._answer()

    def close(self) -> None:
        """End all tunnels; whatever was open is not open any more."""
        for tunnel in self._tunnels.values():
            _end(tunnel)
        self._tunnels.clear()
        for path in (state_file(self.workspace), link_file(self.workspace)):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _read_wanted(self) -> None:
        try:
            changed = state_file(self.workspace).stat().st_mtime_ns
        except OSError:
            changed = 0
        if changed != self._seen:
            self._seen = changed
            state = read_state(self.workspace)
            mine = state.get("session") == self.session
            self._noted = {one["role"]: one for one in state.get("openings", [])} if mine else {}
        # The window says so too, unless it is just starting again: a link is not to outlive its hours for that.
        self._wanted = {role: one for role, one in self._noted.items() if time.time() < one["expires_s"]}

    def _begin(self, tunnel: Tunnel) -> None:
        folder = self.workspace.tmp / "tunnel"
        folder.mkdir(mode=0o700, exist_ok=True)
        windows = {"creationflags": subprocess.CREATE_NO_WINDOW} if os.name == "nt" else {}
        apart = windows or {"start_new_session": True}
        paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels")))}
        with trim_log(self.workspace.logs / "tunnel.log", LOG_LIMIT_BYTES).open("ab") as log:
            tunnel.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "studio.ui.tunnel", str(tunnel.port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=prepare_environment(self.workspace, os.environ) | paths,
                **apart,
            )
        threading.Thread(target=_listen, args=(tunnel, tunnel.process), name="tunnel", daemon=True).start()

    def _answer(self) -> None:
        links = {
            role: {"port": one.port, "link": one.link, "problem": one.problem}
            for role, one in self._tunnels.items()
        }
        if links != self._answered:
            answer = {"session": self.session, "links": links}
            with suppress(OSError):  # a full disk: told at the next look
                write_private(link_file(self.workspace), json.dumps(answer).encode())
                self._answered = links
        for role, one in self._wanted.items():
            link, problem = (links.get(role, {}).get(name, "") for name in ("link", "problem"))
            told = problem in ("", "ended") or (role, problem) in self._told  # what ended is being made again
            if role in self.phrases and not told:  # who asked for it at a terminal may see no window
                self._told.add((role, problem))
                self.tell(text(f"share.tunnel.{problem}"))
            if one["way"] == "lan":
                link = f"http://{next(iter(list_addresses()), '127.0.0.1')}:{one['port']}"
            phrase = self.phrases.get(role, "")
            # Made anew in the window, a phrase is not ours any more.
            if link and (role, link) not in self._told and matches(phrase, one["salt"], one["phrase_hash"]):
                self._told.add((role, link))
                self.tell(text(f"share.told.{role}", link=link, phrase=phrase))


@contextmanager
def hold_tunnels(
    workspace: Workspace, command: Sequence[str], tell: Callable[[Text], None]
) -> Iterator[Tunnels]:
    """Yield the Tunnels of a window that is started with `command`; they end at the end, whatever that was."""
    tunnels = Tunnels(workspace, command, tell)
    try:
        yield tunnels
    finally:
        tunnels.close()


def _listen(tunnel: Tunnel, process: subprocess.Popen) -> None:
    """Take what a tunnel's process says; ends with it."""
    for line in process.stdout:
        try:
            said = parse_json(line)
        except ValueError:
            continue
        if not isinstance(said, dict) or tunnel.process is not process:
            continue
        tunnel.program = int(said.get("pid", tunnel.program))
        tunnel.problem = str(said.get("problem", ""))
        if said.get("link"):
            tunnel.link, tunnel.failures = str(said["link"]), 0


def _end(tunnel: Tunnel) -> None:
    """End a tunnel's process and the program that it started, also when it could not do so itself."""
    process, tunnel.process = tunnel.process, None
    if process is None:
        return
    with suppress(OSError):
        process.stdin.close()  # it ends by that, and takes its program along
    with suppress(subprocess.TimeoutExpired):
        process.wait(FAREWELL_S)
    if os.name != "nt":
        with suppress(ProcessLookupError, PermissionError):  # all gone; macOS says so of a group of zombies
            os.killpg(process.pid, signal.SIGKILL)
    else:
        import psutil

        with suppress(psutil.Error):  # pids are given out again: only what this process started
            program = psutil.Process(tunnel.program)
            if program.ppid() == process.pid:
                program.kill()
        process.kill()
    process.wait()
    tunnel.program = 0
