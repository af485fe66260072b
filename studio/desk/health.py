"""What the desk knows of this machine: facts, what earlier runs learned, the repairs made, the doctor's report."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.events import RepairApplied
from studio.core.facts import MachineFacts
from studio.core.heartbeat import PARENT_VARIABLE, read_safer
from studio.core.hub_token import Mirror, takes_token
from studio.core.recipe import Recipe
from studio.core.text import Text, literal, text
from studio.desk.worker import Worker
from studio.host.detect import detect
from studio.host.environment import prepare_environment
from studio.host.nvml import sample_gpu
from studio.host.plan import OPS, choose_device
from studio.host.remembered import Remembered
from studio.host.repairs import read_applied, restore_environment
from studio.host.settings import change_settings, keep_choices, read_settings, switch_repair
from studio.host.verdict import judge
from studio.host.workspace import Workspace

LAUNCHER = Path(__file__).resolve().parents[2] / "launch.py"


class Health:
    """One machine, examined on a thread of its own; methods may be called from any thread."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._worker = Worker("probes")
        self._lock = threading.Lock()
        self._machine: Future | None = None

    def machine(self) -> MachineFacts:
        """Return the facts as this process has them; found out once, which can take seconds."""
        with self._lock:
            if self._machine is None:
                self._machine = self._worker.submit(lambda: self._detect(dict(os.environ)))
        return self._machine.result()

    def is_known(self) -> bool:
        """Return whether `machine` answers at once; at a first start the probes take ten seconds and more."""
        with self._lock:
            return self._machine is not None and self._machine.done()

    def examine(self, *, fresh: bool = False, hub: bool = False) -> dict[str, Any]:
        """Return the doctor's report (host/verdict.py); `fresh` probes again, `hub` asks the network too.

        A repair that was switched on is tried in the probes at once; runs have it after a restart of the process. What
        else the settings choose (card, kernels, memory) is reported as this process has it: as its runs do.
        """
        environment = keep_choices(prepare_environment(self.workspace, os.environ), os.environ)
        if environment == dict(os.environ) and not (fresh or hub):
            return judge(self.add_experience(self.machine()))
        found = self._worker.submit(lambda: self._detect(environment, fresh=fresh, hub=hub))
        if read_applied(environment) == read_applied(os.environ):
            with self._lock:
                self._machine = found
        return judge(self.add_experience(found.result()))

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
        """Return (bytes used, bytes in all) of the first graphics card's memory; None without one. Takes about 1 ms."""
        gpus = self.machine().gpus
        sample = sample_gpu(0) if gpus else None
        return (sample[1], gpus[0].vram_bytes) if sample else None

    def close(self) -> None:
        """Let the thread end after what it does now."""
        self._worker.close(0.1)

    def _detect(self, environment: dict[str, str], *, fresh: bool = False, hub: bool = False) -> MachineFacts:
        return detect(
            environment=environment,
            workspace_root=self.workspace.root,
            cache=self.workspace.facts,
            fresh=fresh,
            hub=hub,
        )


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
