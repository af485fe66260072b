"""The studio as a person starts it, as a process that can be measured."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def get(port: int, path: str, cookie: str = "") -> int:
    """Return the status of one request; 0 when nothing answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """Return the processes of the studio that `process` is the launcher of."""
    launcher = psutil.Process(process.pid)
    return [launcher, *launcher.children(recursive=True)]


def without_probes(process: subprocess.Popen) -> list[psutil.Process]:
    """Return the launcher and the window, without the probes of the machine that it starts."""
    launcher = psutil.Process(process.pid)
    return [launcher, *launcher.children()]


def has_torch(process: subprocess.Popen) -> bool:
    """Return whether the launcher or the window has loaded torch's library; the probes of the machine may."""
    return any("libtorch" in one.path for each in without_probes(process) for one in each.memory_maps())


def used_s(process: subprocess.Popen) -> float:
    """Return the processor time that the launcher and the window have used."""
    return sum(sum(one.cpu_times()[:2]) for one in without_probes(process))


class LaunchedStudio:
    """`launch.py --here --no-browser` as a process that asks for the cookie by now."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = workspace.with_suffix(".log").open("w")
        started = time.monotonic()
        command = [
            sys.executable,
            str(ROOT / "launch.py"),
            "--here",
            "--no-browser",
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(
            [*command, "--workspace", str(workspace)], stdout=self.log, stderr=self.log
        )
        while get(self.port, "/") != 401:
            assert time.monotonic() - started < 60, "the window did not start"
            time.sleep(0.05)

    @property
    def url(self) -> str:
        """The address with a token that nobody has used yet."""
        return json.loads((self.workspace / "address.json").read_text(encoding="utf-8"))["url"]

    def cpu_s(self) -> dict[int, float]:
        """Return the processor time that each process of the studio has used."""
        return {one.pid: sum(one.cpu_times()[:2]) for one in family(self.process)}

    def memory_bytes(self) -> int:
        """Return the memory that the studio holds for itself."""
        return sum(one.memory_full_info().uss for one in family(self.process))

    def close(self) -> None:
        """End the studio as Ctrl-C would."""
        self.process.terminate()
        self.process.wait(25)
        self.log.close()
