"""What the desk knows of this machine: facts, what earlier runs learned, the repairs made, the doctor's report."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.events import RepairApplied
from studio.core.facts import MachineFacts
from studio.core.heartbeat import PARENT_VARIABLE, read_safer
from studio.core.i18n import Text, literal, text
from studio.core.recipe import Recipe
from studio.hub.access_token import Mirror, takes_token
from studio.machine.cards import choose_card, look_at_memory
from studio.machine.detect import detect
from studio.machine.environment import prepare_environment
from studio.machine.nvml import sample_gpu
from studio.machine.repairs import read_applied, restore_environment
from studio.machine.settings import change_settings, keep_choices, read_settings, switch_repair
from studio.machine.workspace import Workspace
from studio.planning.doctor_report import judge
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import OPS, choose_device
from studio.services.worker import Worker

LAUNCHER = Path(__file__).resolve().parents[2] / "launch.py"


class MachineState:
    """One machine, examined on a thread of its own; methods may be called from any thread."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._worker = Worker("probes")
        self._lock = threading.Lock()
        self._machine: Future | None = None
        self._importable: Future[bool] = Future()
        self._hurry: Callable[[], bool] | None = None

    def facts(self) -> MachineFacts:
        """Return the facts as this process has them; found out once, which can take seconds."""
        return self._begin().result()

    def wait_importable(self) -> bool:
        """Return whether torch and Triton are known to be imported here without harm; waits until that is known.

        The probes of a first start answer it in 3 s, and take ten and more to their end.
        """
        self._begin()
        return self._importable.result()

    def hurry(self, ready: Callable[[], bool]) -> None:
        """Let the first look end once `ready` says so, with those kernels tested that nothing else proves.

        To be called before anything else asks. For a process that trains, whose decoder proves every kernel that it
        uses with the model itself, or that uses none.
        """
        self._hurry = ready

    def now(self) -> MachineFacts:
        """Return the facts with what the graphics cards have free just now: other programs come and go."""
        return look_at_memory(self.facts())

    def is_known(self, within_s: float = 0.0) -> bool:
        """Return whether `machine` answers within this time; at a first start the probes take ten seconds and more."""
        if within_s:
            wait([self._begin()], timeout=within_s)
        with self._lock:
            return self._machine is not None and self._machine.done()

    def examine(self, *, fresh: bool = False, hub: bool = False) -> dict[str, Any]:
        """Return the doctor's report (planning/doctor_report.py); `fresh` probes again, `hub` asks the network too.

        A repair that was switched on is tried in the probes at once; runs have it after a restart of the process. What
        else the settings choose (card, kernels, memory) is reported as this process has it: as its runs do.
        """
        environment = keep_choices(prepare_environment(self.workspace, os.environ), os.environ)
        if environment == dict(os.environ) and not (fresh or hub):
            return judge(self.add_experience(self.now()))
        found = self._worker.submit(lambda: self._detect(environment, fresh=fresh, hub=hub))
        if read_applied(environment) == read_applied(os.environ):
            with self._lock:
                self._machine = found
        return judge(self.add_experience(look_at_memory(found.result())))

    def add_experience(
        self, machine: MachineFacts, recipe: Recipe | None = None, run: str = ""
    ) -> MachineFacts:
        """Return `machine` with the kernels that failed in earlier runs, or all when `run` stood still before.

        With `recipe` those of the card that it would take, else of every card.
        """
        remembered = Remembered(self.workspace.remembered)
        if recipe is None:
            broken = dict(remembered.broken_kernels(machine))
        else:
            card = choose_device(machine, recipe)[1]
            machine = remembered.add_experience(machine, card.name if card else "")
            broken = dict(machine.broken_kernels)
        if run and "pytorch_kernels" in read_safer(run):
            broken |= dict.fromkeys(OPS, "The last attempt stood still.")
        return dataclasses.replace(machine, broken_kernels=broken) if broken else machine

    def repairs(self) -> tuple[RepairApplied, ...]:
        """Return what was set right in the environment of this process before it started."""
        events = []
        for name, before in read_applied(os.environ).items():
            values = [value for key in before if (value := os.environ.get(key))]
            message = text(f"repair.{name}", names=", ".join(before), value=values[0] if values else "")
            events.append(RepairApplied(repair=name, message=message))
        return tuple(events)

    def repairs_left(self) -> tuple[str, ...]:
        """Return the names of the repairs that the person switched off."""
        return tuple(read_settings(self.workspace).get("repairs_off", ()))

    def switch_repair(self, name: str, *, on: bool) -> None:
        """Let a repair be made from the next start on, or leave it. Raises OSError."""
        switch_repair(self.workspace, name, on=on)

    def restart_waits(self) -> bool:
        """Return whether the settings ask for other repairs than this process started with. Takes 0.1 s."""
        return read_applied(prepare_environment(self.workspace, os.environ)) != read_applied(os.environ)

    def open_bridge(self, port: int) -> None:
        """Open a console that sets the studio up inside WSL2 and opens it at `port` once this one has ended."""
        python = sys.executable.replace("pythonw.exe", "python.exe")
        words = ["wsl", "--yes", "--take-over", "--no-browser", "--port", str(port)]
        environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
        subprocess.Popen(
            [python, str(LAUNCHER), *words],
            env=restore_environment(environment),
            creationflags=getattr(subprocess, "CREATE_NEW_CONSOLE", 0),
        )

    def mirror(self) -> Mirror:
        """Return the model hub's mirror that models come from."""
        settings = read_settings(self.workspace)
        return Mirror(settings.get("hub_endpoint", ""), settings.get("mirror_token", False))

    def set_mirror(self, address: str) -> None:
        """Let models come from `address` from now on, "" for the hub itself. Another one is not allowed the token yet.

        Raises StudioError, OSError.
        """
        address = address.strip().rstrip("/")
        wrong = ""
        if re.match(r"https?://[^/]*@", address):
            wrong = "desk.mirror.secret"
        elif address and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", address):
            wrong = "desk.mirror"
        if wrong:
            raise StudioError(text(wrong), text(f"{wrong}.why"), text(f"{wrong}.fix"))
        now = self.mirror()
        change_settings(
            self.workspace, hub_endpoint=address, mirror_token=now.token and now.address == address
        )

    def allow_token(self, allowed: bool) -> None:
        """Let the mirror have the hub's token too, or the hub alone. Raises StudioError for one without https."""
        if allowed and not takes_token(self.mirror().address):
            raise StudioError(*(text(f"desk.mirror.token{part}") for part in ("", ".why", ".fix")))
        change_settings(self.workspace, mirror_token=allowed)

    def memory(self) -> tuple[int, int] | None:
        """Return (bytes used, bytes in all) of the memory of the card that trains; None without one. Takes some ms."""
        machine = self.now()
        card = choose_card(machine)
        if card is None:
            return None
        sample = sample_gpu(next(i for i, gpu in enumerate(machine.gpus) if gpu is card))
        return (sample[1], card.vram_bytes) if sample else None

    def close(self) -> None:
        """Let the thread end after what it does now."""
        self._worker.close(0.1)

    def _begin(self) -> Future:
        with self._lock:
            if self._machine is None:
                self._machine = self._worker.submit(lambda: self._detect(dict(os.environ)))
            return self._machine

    def _detect(self, environment: dict[str, str], *, fresh: bool = False, hub: bool = False) -> MachineFacts:
        try:
            return detect(
                environment=environment,
                workspace_root=self.workspace.root,
                cache=self.workspace.facts,
                fresh=fresh,
                hub=hub,
                importable=self._note_importable,
                hurry=self._hurry,
            )
        finally:
            self._note_importable(False)

    def _note_importable(self, known: bool) -> None:
        with self._lock:
            if not self._importable.done():
                self._importable.set_result(known)


def hide_broken_triton(machine: MachineFacts) -> Text | None:
    """Keep every library from a Triton that is installed but cannot be imported; return that in words, or None.

    trl and transformers look for the package and then fail inside it; without it they take another way. Only for
    this process, and before anything imported it.
    """
    if machine.triton_level != "installed" or not machine.triton_error:
        return None
    if sys.modules.get("triton") is None:
        sys.modules["triton"] = None  # type: ignore[assignment]  # import then raises ModuleNotFoundError
    return text("desk.triton_hidden", reason=literal(machine.triton_error.splitlines()[0]))
