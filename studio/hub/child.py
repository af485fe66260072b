"""A process that connects for the studio, which itself stays offline: `ask` starts one, the rest is what it does.

It answers by lines of JSON, {"done_bytes": n, "total_bytes": n} as it goes and then its answer or {"error": kind,
"detail": words}, and ends by itself when its standard input closes: then its parent is gone.
"""

from __future__ import annotations

import errno
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from studio.core.errors import StudioError
from studio.core.json_file import parse_json
from studio.hub.offline import OFFLINE

POLL_S = 0.2
REPORT_S = 0.5
DETAIL = 300
"""Characters of a library's own words that are passed on."""
Report = Callable[[int, int], None]
"""(bytes done, bytes in all or 0 where that is not known)"""


class Refused(Exception):
    """It cannot be done; `kind` names the texts of whoever asked, such as `download.KIND`."""

    def __init__(self, kind: str, words: str = "") -> None:
        super().__init__(words)
        self.kind = kind


class DownloadStopped(StudioError):
    """The person asked for the end in the middle of a download."""


# The parent ----------------------------------------------------------------------------------------------------------


def ask(
    module: str,
    *words: str,
    wish: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
    report: Report | None = None,
    should_stop: Callable[[], bool] | None = None,
    patience_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Return what the program `module` answers, called with `words` and given `wish` on its standard input.

    Looks at `should_stop()` every POLL_S. Its answer's "error" is "stopped" then, "stalled" after `patience_s` without
    a line, and "ended" where it gave none: then "detail" is the last line of its errors.
    """
    answer: dict[str, Any] = {}
    with tempfile.TemporaryFile() as errors:
        child = start(module, words, wish, environment, errors)
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(child.stdout, lines), name="hub", daemon=True).start()
        heard_s = clock()
        try:
            while not (should_stop and should_stop()):
                try:
                    line = lines.get(timeout=POLL_S)
                except queue.Empty:
                    if clock() - heard_s > patience_s:
                        return {"error": "stalled"}
                    continue
                if line is None:
                    break
                try:
                    heard_s, message = clock(), parse_json(line)
                except ValueError:  # no line of ours
                    return {
                        "error": "ended",
                        "detail": line.decode("utf-8", errors="replace").strip()[:DETAIL],
                    }
                if "done_bytes" not in message:
                    answer = message
                elif report is not None:
                    report(message["done_bytes"], message["total_bytes"])
            else:
                return {"error": "stopped"}
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
        if answer:
            return answer
        errors.seek(0)
        said = errors.read().decode("utf-8", errors="replace").strip().splitlines()
    return {"error": "ended", "detail": (said or [""])[-1]}


def start(
    module: str,
    words: tuple[str, ...],
    wish: Mapping[str, Any] | None,
    environment: Mapping[str, str],
    errors: IO[bytes],
) -> subprocess.Popen:
    """Start `python -m module words...`, which may use the network; its errors go to `errors`."""
    changed = {name: value for name, value in environment.items() if name not in OFFLINE}
    root = str(Path(__file__).resolve().parents[2])
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, (root, changed.get("PYTHONPATH", ""))))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
        stdin=subprocess.PIPE,  # closes with us: the child then ends by itself
        stdout=subprocess.PIPE,
        stderr=errors,
        env=changed,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    if wish is not None:
        # Not by its arguments, which every user of the machine can see: an address may hold a key.
        child.stdin.write(json.dumps(wish).encode("utf-8") + b"\n")
        child.stdin.flush()
    return child


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


# The child -----------------------------------------------------------------------------------------------------------


def say(message: Mapping[str, Any]) -> None:
    """Write `message` as one line of the real standard output, whatever libraries are given in its place."""
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def say_error(kind: str, reason: Exception) -> None:
    """Say what ended the work: its kind, and the first line of `reason`."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    say({"error": kind, "detail": (lines[0] if lines else type(reason).__name__)[:DETAIL]})


class DownloadProgress:
    """Says how many of `total_bytes` (0: not known) are here, at most every REPORT_S."""

    def __init__(self, total_bytes: int) -> None:
        self.done_bytes, self.total_bytes, self._said_s = 0, total_bytes, 0.0

    def set(self, done_bytes: int) -> None:
        """Say that `done_bytes` are here."""
        self.done_bytes = done_bytes
        if time.monotonic() - self._said_s > REPORT_S or done_bytes >= self.total_bytes > 0:
            self._said_s = time.monotonic()
            say({"done_bytes": done_bytes, "total_bytes": self.total_bytes})

    def add(self, count_bytes: int) -> None:
        """Count `count_bytes` more (fewer when negative)."""
        self.set(self.done_bytes + count_bytes)

    def beat(self) -> None:
        """Say again how much is here: work goes on that fetches nothing."""
        if time.monotonic() - self._said_s > REPORT_S:
            self.add(0)


def end_with_parent() -> None:
    """Start a thread that ends this process, with code 1, when its standard input closes."""
    threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def require_space(folder: Path, needed_bytes: int, spare_bytes: int = 0) -> None:
    """Raise OSError (no space left) when the disk of `folder` cannot take so much and keep `spare_bytes` free."""
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes + spare_bytes > free_bytes:
        raise OSError(errno.ENOSPC, f"{needed_bytes / 1e9:.1f} GB > {free_bytes / 1e9:.1f} GB")


def _wait() -> None:
    # Past sys.stdin, whose lock a waiting thread would hold: the interpreter aborts at its end when it cannot have it.
    while os.read(0, 1024):
        continue
    os._exit(1)
