"""The parent: a few children that judge rows by a person's code, each ended and begun anew where it does not answer.

    rows -> as many parts as children -> a part as one call -> where that fails: its rows one by one -> who it was

A part that fails says nothing of which row did it, so its rows are asked again one at a time, each with a limit of
its own: one endless row among 64 costs one limit of a part and one of a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from studio.core.json_file import parse_json
from studio.core.temporary_folder import TemporaryFolder
from studio.engine.guarded_code.confine import clean_environment
from studio.engine.guarded_code.job_object import JobObject
from studio.machine.probes.probe_context import PROGRAM

if TYPE_CHECKING:
    import psutil

LOOK_S = 0.05
"""How often a waiting parent looks at a child's memory."""
GRACE_S = 2.0
START_S = 30.0
"""More, for a Python that starts on a busy machine, than the code's own limit to load."""
LINE_BYTES = 2**26
MOST_CHILDREN = 4
MARKER = "FINETUNE_STUDIO_GUARDED"
"""An environment variable by which a child's children are found, wherever they went."""
SWEEPS = 20
BEGIN_S = 0.01
"""A process becomes another program in far less."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a row has no score, through a fault of what judges it."""

    kind: str
    """raised, timeout, memory, exited, not_finite, wrong_length, wrong_type, unloaded, unreachable, unread: text
    `reward.failed.KIND`.
    """
    detail: str = ""
    """Such as the exception's own words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeLimits:
    """What code may take."""

    batch_s: float = 10.0
    """For all rows that one child is asked at once."""
    row_s: float = 5.0
    load_s: float = 60.0
    """For what it imports and does when it is loaded."""
    memory_bytes: int = 4 * 2**30
    network: bool = False
    processes: bool = False
    """Whether it may start other programs."""
    fresh: bool = False
    """Whether each row gets a process of its own: what one row's code has changed, the next does not see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Which function of which file, and what it is told beside the rows."""

    path: Path
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    form: str = ""
    """"text" or "messages", how answers are handed over; "" finds out."""


class CodePool:
    """Children that judge rows. One thread at a time may ask."""

    def __init__(self, program: Program, limits: CodeLimits, *, seed: int, children: int = 0) -> None:
        """Start nothing yet. `children`: 0 takes as many as there are processors but one, MOST_CHILDREN at most."""
        self._program, self._limits, self._seed = program, limits, seed
        spare = (os.cpu_count() or 1) - 1
        self._children = [
            _Child(program, limits, seed) for _ in range(children or min(MOST_CHILDREN, max(1, spare)))
        ]
        self.said = ""
        """The end of what the code printed last."""

    def __enter__(self) -> CodePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all children."""
        for child in self._children:
            child.end()

    def load(self) -> Failed | None:
        """Load the code in a first child; return what went wrong."""
        return self._children[0].start()

    def judge(self, rows: Sequence[Mapping[str, Any]]) -> list[float | None | Failed]:
        """Return what the code says of each of `rows`."""
        count = min(len(self._children), len(rows)) or 1
        parts = [rows[len(rows) * i // count : len(rows) * (i + 1) // count] for i in range(count)]
        with ThreadPoolExecutor(count, thread_name_prefix="guarded-code") as threads:
            found = list(threads.map(self._judge_part, self._children, parts))
        self.said = next((child.said for child in self._children if child.said), "")
        return [score for part in found for score in part]

    def _judge_part(self, child: _Child, rows: Sequence[Mapping[str, Any]]) -> list[float | None | Failed]:
        limits = self._limits
        if len(rows) > 1 and not limits.fresh:
            scores = child.judge(rows, limits.batch_s)
            if not isinstance(scores, Failed):
                return scores
        found: list[float | None | Failed] = []
        for row in rows:
            if limits.fresh:
                child.end()
            one = child.judge([row], limits.row_s)
            found.append(one if isinstance(one, Failed) else one[0])
        return found


class _Child:
    """One process, begun when it is first asked."""

    def __init__(self, program: Program, limits: CodeLimits, seed: int) -> None:
        self._program, self._limits, self._seed = program, limits, seed
        self._process: subprocess.Popen[bytes] | None = None
        self._job: JobObject | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._folder: TemporaryFolder | None = None
        self._mark = ""
        self.said = ""

    def start(self) -> Failed | None:
        """Start the process and load the code, unless it stands; return what went wrong."""
        if self._process is not None:
            return None
        self._folder, self._mark = TemporaryFolder("reward"), secrets.token_hex(8)
        environment = clean_environment(str(self._folder.path), self._seed)
        environment |= {"PYTHONPATH": str(PROGRAM), MARKER: self._mark}
        windows = {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-X", "utf8", "-m", "studio.engine.guarded_code.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.path,
            env=environment,
            **(windows if sys.platform == "win32" else {"start_new_session": True}),
        )
        limits, program = self._limits, self._program
        if sys.platform == "win32":
            self._job = JobObject(
                int(self._process._handle), memory_bytes=limits.memory_bytes, processes=limits.processes
            )
        self._lines = queue.SimpleQueue()
        reads = threading.Thread(
            target=_read, args=(self._process.stdout, self._lines), name="guarded-code", daemon=True
        )
        reads.start()
        wish = {
            "path": str(program.path), "function": program.function, "options": dict(program.options),
            "form": program.form, "seed": self._seed, "load_s": limits.load_s, "memory_bytes": limits.memory_bytes,
            "network": limits.network, "processes": limits.processes,
        }  # fmt: skip
        answer = self._ask(wish, limits.load_s, START_S)
        if isinstance(answer, dict) and "failed" in answer:
            self.end()
            return Failed(answer["failed"], answer["detail"])
        return answer if isinstance(answer, Failed) else None

    def judge(self, rows: Sequence[Mapping[str, Any]], limit_s: float) -> list[float | None] | Failed:
        """Return the scores of `rows` by one call, or why there are none; the process is ended where it hangs."""
        if (failed := self.start()) is not None:
            return Failed("unloaded", f"{failed.kind} {failed.detail}".strip())
        answer = self._ask({"rows": list(rows), "limit_s": limit_s}, limit_s)
        if isinstance(answer, Failed):
            return answer
        if "failed" in answer:
            if answer["failed"] == "memory":
                self.end()
                return Failed("memory", _say_size(self._limits.memory_bytes))
            return Failed(answer["failed"], answer["detail"])
        return answer["scores"]

    def end(self) -> None:
        """End the process, all that it started, and its folder."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if self._job is not None:
            self._job.close()
            self._job = None
        _kill_tree(process, self._mark if self._limits.processes else "")
        with contextlib.suppress(OSError):  # what was to be written to a dead one
            process.stdin.close()
        self._folder.close()

    def _ask(self, wish: Mapping[str, Any], limit_s: float, more_s: float = 0.0) -> dict[str, Any] | Failed:
        process = self._process
        try:
            process.stdin.write(json.dumps(wish, default=str).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return self._give_up(limit_s)
        ends_s = time.monotonic() + limit_s + more_s
        while True:
            try:
                line = self._lines.get(timeout=LOOK_S)
            except queue.Empty:
                if time.monotonic() > ends_s:
                    self.end()
                    return Failed("timeout", f"{limit_s:g}")
                if self._measure_bytes() > self._limits.memory_bytes:
                    self.end()
                    return Failed("memory", _say_size(self._limits.memory_bytes))
                continue
            if not line:
                return self._give_up(limit_s)
            try:
                answer = parse_json(line)
            except ValueError:  # cut, or not ours
                self.end()
                return Failed("exited", "")
            self.said = answer.get("said", "")
            return answer

    def _give_up(self, limit_s: float) -> Failed:
        """Return how the process ended by itself."""
        process = self._process
        try:
            code = process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            code = 0
        self.end()
        if code < 0:
            known = {member.value: member.name for member in signal.Signals}
            return Failed("exited", known.get(-code, str(code)))
        return Failed("exited", str(code))

    def _measure_bytes(self) -> int:
        """Return what the process and those that it started hold of the memory."""
        import psutil

        try:
            first = psutil.Process(self._process.pid)
            family = [first, *(first.children(recursive=True) if self._limits.processes else ())]
            return sum(_measure(one) for one in family)
        except psutil.Error:
            return 0


def _measure(process: Any) -> int:
    import psutil

    try:
        return process.memory_info().rss
    except psutil.Error:  # ended meanwhile
        return 0


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    while line := stream.readline(LINE_BYTES):
        lines.put(line)
    lines.put(b"")
    stream.close()


def _kill_tree(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a process group; with `mark` also whoever left it, as often as that finds somebody."""
    sweeps = bool(mark) and sys.platform != "win32"
    family = _stop_family(process.pid) if sweeps else []
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    _kill(family)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return  # stuck in the system: nothing can end it
    for _ in range(SWEEPS if sweeps else 0):
        strays, waits = _find_marked(mark, since_s=family[0].create_time() if family else 0.0)
        _kill(strays)
        if waits:
            time.sleep(BEGIN_S)
        elif not strays:
            return


def _kill(processes: Sequence[psutil.Process]) -> None:
    import psutil

    for one in processes:
        with contextlib.suppress(psutil.Error):
            one.kill()


def _stop_family(pid: int) -> list[psutil.Process]:
    """Halt a process, so that it starts nobody any more, and return it with all that descend from it."""
    import psutil

    with contextlib.suppress(psutil.Error):
        first = psutil.Process(pid)
        first.suspend()
        return [first, *first.children(recursive=True)]
    return []


def _find_marked(mark: str, since_s: float) -> tuple[list[psutil.Process], bool]:
    """Return who has the mark, and whether someone that began after `since_s` may have it in a moment.

    While a process becomes another program it has no environment: the old one is gone, the new one not yet there.
    """
    import psutil

    found, waits = [], False
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(MARKER) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
            elif not environment and process.create_time() >= since_s and process.memory_info().rss:
                waits = True
        except (psutil.Error, OSError):
            continue  # another user's, or ended
    return found, waits


def _say_size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"
