"""One crossing into a Linux of WSL: copy the program, install it, hand the workspace over, open the studio there."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import posixpath
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.cli.console import Console
from studio.core.errors import Problem, StudioError
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.i18n import literal, text
from studio.core.json_file import read_json
from studio.hub.mirrors import find_mirrors
from studio.machine import wsl
from studio.machine.probes.wsl import WINDOWS_RAM_VARIABLE
from studio.machine.program_archive import pack_program
from studio.machine.workspace import LOCAL_VARIABLE, WORKSPACE_VARIABLE, Workspace
from studio.machine.workspace_lock import ADDRESS_FILE, Holder, claim, claim_run
from studio.machine.wsl_lease import BRIDGE_VARIABLE, MARKER, hand_over
from studio.machine.wsl_paths import to_linux
from studio.supervisor.restarts import stop_requests

ROOT = Path(__file__).resolve().parents[2]
OWN_FOLDER = ".finetune-studio"
"""In the Linux home, beside the program's folder."""
GRACE_S = 30.0
"""The Linux supervisor needs 20 s at most to write a checkpoint and end."""
TAKE_OVER_S = 40.0
FORWARD_S = 60.0
TICK_S = 0.2
UNSEEN = 44
"""Exit code of our script where the workspace is not to be seen from inside."""
MERGE = """set -e
mkdir -p "$HOME/{program}"
cd "$HOME/{program}"
printf changing > .studio-copy
if [ -f .studio-files ]; then while IFS= read -r name; do rm -f -- "$name"; done < .studio-files; fi
cp -R "$HOME/{own}/incoming/." .
rm -rf "$HOME/{own}/incoming"
printf %s {version} > .studio-copy.new
mv .studio-copy.new .studio-copy
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What the bridge asks of this computer; the tests put other things in."""

    system: str = ""
    wsl: str = ""
    """Path of wsl.exe; "" finds it."""
    run: wsl.Run = subprocess.run
    start: Callable[..., Any] = subprocess.Popen
    translate: Callable[[str, str, str], str] = to_linux
    open_page: Callable[[str], object] = webbrowser.open
    program: Path = ROOT
    """The folder of the program to copy."""


@dataclass(kw_only=True, slots=True)
class Crossing:
    """One way into the distribution `name`."""

    workspace: Workspace
    console: Console
    machine: Machine
    name: str
    guest: wsl.Guest
    _known: dict[str, str] = field(default_factory=dict, init=False)

    def go(self, options: argparse.Namespace, problems: tuple[Problem, ...]) -> int:
        """Say what will be done, ask, set up, hand the workspace over, and open the studio until it ends."""
        # A Python of the Store, or a drive that stands for another folder, sees another path than everybody else.
        real = os.path.realpath(self.workspace.root)
        inside = self.machine.translate(real, self.name, self.guest.automount)
        program, version = pack_program(self.machine.program)
        new = self.guest.program != version
        install = new or not self.guest.ready
        self._announce(inside, problems, new, install, only_prepare=options.prepare)
        if not options.yes:
            self._ask()
        with contextlib.ExitStack() as held:
            if not options.prepare:
                self._claim(held, TAKE_OVER_S if options.take_over else 0.0)
            if new:
                self._copy(program, version)
            if install:
                self._install()
            if options.prepare:
                self.console.answer(
                    {"distribution": self.name, "version": version}, [self._said("wsl.set_up")]
                )
                return 0
            held.enter_context(hand_over(self.workspace, self.name))
            return self._open(options, inside)

    def _announce(
        self, inside: str, problems: tuple[Problem, ...], new: bool, install: bool, *, only_prepare: bool
    ) -> None:
        self._tell("wsl.plan")
        if new:
            self._tell("wsl.plan.copy", path=f"~/{wsl.PROGRAM_FOLDER}")
        if install:
            self._tell("wsl.plan.install")
        if not only_prepare:
            self._tell("wsl.plan.hand_over", path=str(self.workspace.root), inside=inside)
            self._tell("wsl.plan.open")
            self._tell("wsl.plan.slow")
        for problem in problems:
            self.console.say(problem.message)
            self.console.say(problem.fix)

    def _ask(self) -> None:
        refusal = StudioError(text("wsl.consent"), text("wsl.consent.why"), text("wsl.consent.fix"))
        if not sys.stdin or not sys.stdin.isatty():
            raise refusal
        self._tell("wsl.consent.question")
        if sys.stdin.readline().strip().lower() not in ("y", "yes", "j", "是", "好"):
            raise refusal

    def _claim(self, held: contextlib.ExitStack, wait_s: float) -> None:
        """Take both claims of Windows for as long as `held` stands. Raises StudioError when the studio has them."""
        # Started by the window's button, the supervisor's claim would pass for ours, and it is about to end.
        os.environ.pop(PARENT_VARIABLE, None)
        deadline = time.monotonic() + wait_s
        while isinstance(taken := claim(self.workspace, "studio"), Holder):
            if time.monotonic() >= deadline:
                raise StudioError(
                    text("wsl.in_use", path=str(self.workspace.root)),
                    text("wsl.in_use.why"),
                    text("wsl.in_use.fix"),
                )
            time.sleep(TICK_S)
        held.enter_context(taken)
        held.enter_context(claim_run(self.workspace))

    def _copy(self, program: bytes, version: str) -> None:
        self._tell("wsl.copying")
        incoming = posixpath.join(self.guest.home, OWN_FOLDER, "incoming")
        folder = f'"$HOME/{OWN_FOLDER}/incoming"'
        self._script(f"set -e\nrm -rf {folder}\nmkdir -p {folder}\n")
        unpack = wsl.guest_command(self.name, "tar", "-xzf", "-", "-C", incoming, wsl=self.machine.wsl)
        self._check(self.machine.run(unpack, input=program, capture_output=True, check=False, **wsl.hidden()))
        self._script(MERGE.format(program=wsl.PROGRAM_FOLDER, own=OWN_FOLDER, version=version))

    def _install(self) -> None:
        """Run `launch.py install` inside and show its lines as they come. Raises StudioError when it fails."""
        self._tell("wsl.installing")
        script = wsl.assign(**self._passed_on())
        script += f'cd "$HOME/{wsl.PROGRAM_FOLDER}" && exec python3 launch.py install </dev/null 2>&1\n'
        command = wsl.guest_command(self.name, "sh", "-s", wsl=self.machine.wsl)
        pipe = subprocess.PIPE
        process = self.machine.start(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, **wsl.hidden()
        )
        try:
            process.stdin.write(script.encode())
            process.stdin.close()
            said = []
            for line in process.stdout:
                said = [*said[-2:], line.decode("utf-8", errors="replace").rstrip()]
                print(said[-1], file=sys.stderr, flush=True)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code != 0:
            raise StudioError(
                text("wsl.install_failed", name=self.name),
                literal(" ".join(said)),
                text("wsl.install_failed.fix"),
                exit_code=1,
            )

    def _open(self, options: argparse.Namespace, inside: str) -> int:
        """Start the Linux studio, open its page here, and return its exit code once it has ended."""
        from studio.ui.splash import answers, likely_ports

        wanted = [options.port] if options.port else likely_ports(self.workspace)
        port = next((each for each in wanted if not answers(each)), None)
        if port is None:
            raise StudioError(
                text("ui.serve.taken", port=wanted[0]), text("ui.serve.taken.why"), text("ui.serve.taken.fix")
            )
        script = self._leave_start_script(inside, port)
        address_file = self.workspace.root / ADDRESS_FILE
        address_file.unlink(missing_ok=True)
        self._tell("wsl.opening")
        log = self.workspace.logs / "wsl.log"
        page = _Page(address_file, port, None if options.no_browser else self.machine.open_page, self._tell)
        with log.open("wb") as output:
            command = wsl.guest_command(self.name, "sh", script, wsl=self.machine.wsl)
            child = self.machine.start(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, **_own_group()
            )
            asked = _wait(child, page)
        code = child.returncode if 0 <= child.returncode <= 255 else 1
        if code != 0 and not asked:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise StudioError(
                text("wsl.ended", name=self.name, code=child.returncode),
                literal(" ".join(said)),
                text("wsl.ended.fix", path=str(log)),
                exit_code=1,
            )
        data = {"distribution": self.name, "address": page.address, "workspace": inside, "port": port}
        self.console.answer(data, [self._said("wsl.closed")])
        return 0 if asked else code

    def _leave_start_script(self, inside: str, port: int) -> str:
        """Write what starts the studio into the Linux home and return its path there. Raises StudioError."""
        import psutil

        work = f"{OWN_FOLDER}/work-{hashlib.sha256(inside.encode()).hexdigest()[:12]}"
        folder = posixpath.join(self.guest.home, work)
        variables = self._passed_on() | {
            WORKSPACE_VARIABLE: inside,
            BRIDGE_VARIABLE: self.name,
            LOCAL_VARIABLE: folder,
            WINDOWS_RAM_VARIABLE: str(psutil.virtual_memory().total),
        }
        start = wsl.assign(**variables)
        start += f'cd "$HOME/{wsl.PROGRAM_FOLDER}" && exec python3 launch.py wsl --inside --port {port}\n'
        marker = wsl.assign(marker=posixpath.join(inside, MARKER))
        script = (
            f'{marker}[ -f "$marker" ] || exit {UNSEEN}\nset -e\numask 077\nmkdir -p "$HOME/{work}/triton"\n'
        )
        script += f"cat >\"$HOME/{work}/start.sh\" <<'END_OF_START'\n{start}END_OF_START\n"
        self._script(script)
        return posixpath.join(folder, "start.sh")

    def _passed_on(self) -> dict[str, str]:
        """Return what the Linux side is to know of the person's settings; asked once, as pip takes a second."""
        if not self._known:
            ask = [sys.executable, "-m", "pip", "config", "list"]
            nowhere = subprocess.DEVNULL
            said = self.machine.run(ask, capture_output=True, stdin=nowhere, check=False, **wsl.hidden())
            self._known = find_mirrors(os.environ, said.stdout.decode("utf-8", errors="replace"))
            self._known["FINETUNE_STUDIO_LANGUAGE"] = self.console.catalogue.language
        return self._known

    def _script(self, script: str) -> None:
        self._check(wsl.run_script(self.name, script, self.machine.run, wsl=self.machine.wsl))

    def _check(self, answer: Any) -> None:
        if answer.returncode == UNSEEN:
            raise StudioError(
                text("wsl.unseen", name=self.name, path=str(self.workspace.root)),
                text("wsl.unseen.why"),
                text("wsl.unseen.fix"),
            )
        if answer.returncode != 0:
            said = wsl.decode(answer.stderr).strip() or wsl.decode(answer.stdout).strip()
            raise StudioError(
                text("wsl.step_failed", name=self.name, code=answer.returncode),
                literal(said[-300:] or "-"),
                text("wsl.problem.silent.fix"),
                exit_code=1,
            )

    def _tell(self, id: str, **values: object) -> None:
        self.console.say(text(id, name=self.name, **values))

    def _said(self, id: str) -> str:
        return self.console.catalogue.say(text(id, name=self.name))


class _Page:
    """The Linux studio's page: called every tick, it waits for the address and opens it once it answers."""

    def __init__(
        self,
        file: Path,
        port: int,
        open_page: Callable[[str], object] | None,
        tell: Callable[..., None],
    ) -> None:
        self.file, self.port, self.open_page, self.tell = file, port, open_page, tell
        self.address = ""
        self._deadline = 0.0
        self._done = False

    def __call__(self) -> None:
        from studio.ui.splash import answers

        if self._done:
            return
        try:  # the process that it names is one of Linux: its number says nothing here
            self.address = str(read_json(self.file)["url"])
        except (StudioError, KeyError, TypeError):
            return
        self._deadline = self._deadline or time.monotonic() + FORWARD_S
        if answers(self.port):
            self._done = True
            self.tell("wsl.address", address=self.address)
            if self.open_page:
                self.open_page(self.address)
        elif time.monotonic() > self._deadline:
            self._done = True
            self.tell("wsl.not_forwarded", address=self.address)


def _wait(child: Any, on_tick: Callable[[], None]) -> bool:
    """Wait for the end of `child`; Ctrl-C tells it to stop, and its input ends with us. Return whether it was asked."""
    told = 0.0
    try:
        with stop_requests() as asked:
            while child.poll() is None:
                on_tick()
                if asked and not told:
                    told = time.monotonic()
                    _tell_stop(child)
                if told and time.monotonic() - told > GRACE_S:
                    child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(TICK_S)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        child.stdin.close()
    return bool(told)


def _tell_stop(child: Any) -> None:
    try:
        child.stdin.write(b"stop\n")
        child.stdin.flush()
    except OSError:
        return  # it is ending already


def _own_group() -> dict[str, Any]:
    """Ctrl-C in the terminal is for us alone: wsl.exe would end at once and leave no time for a checkpoint."""
    if os.name == "nt":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}
