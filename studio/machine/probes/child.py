"""Runs what could hang or crash in a child process with a time limit: whatever becomes of it is an answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from studio.core.json_file import parse_json
from studio.machine.probes.probe_context import PROGRAM

MARK = "FACTS "
"""Opens each line in which a probe hands over facts, as JSON; later lines win."""
TAIL_BYTES = 64_000
LONGEST_ERROR = 4000
"""Characters: an assembler's complaint with its command is 1,000 to 2,000."""
GRACE_S = 2.0
"""A process stuck in a driver cannot be killed: it is left behind after this."""
MARGIN_S = 1.0
LISTEN_S = 0.1
PATIENCE = 2
"""A child that computes or reads gets so many times its limit: from a busy disk torch took 60 s where it takes 3."""
PROGRESS_S = 0.2
"""Of the processor's time, in a second, or ..."""
PROGRESS_BYTES = 2**20
"""... so much read, that show that a child gets on."""
LAST_WORDS_S = 0.3
START = """
import faulthandler, os, runpy, signal, sys
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True, file=open(os.devnull, "w"))
if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module that ends by itself MARGIN_S after its time limit: its parent may have been killed meanwhile.

SIGUSR1 makes it say where it is."""
PLACE = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildAnswer:
    """What a child process said and how it ended."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it handed over, also when it died later."""
    said: str = ""
    """The end of its standard output."""
    error: str = ""
    """Why it failed: the exception's whole text, its last words or how it ended; "" when it ended well."""
    timed_out: bool = False
    cut: bool = False
    """Whether it was ended because what it had said was enough."""


def run_child(
    module: str,
    arguments: Sequence[str] = (),
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    heard: Callable[[Mapping[str, Any]], None] | None = None,
    enough: Callable[[Mapping[str, Any]], bool] | None = None,
) -> ChildAnswer:
    """Run `module` as a program of this interpreter and return its Answer; never raises for what the child does.

    `heard(facts so far)` is called while it runs, where the system can read a file that another process writes on.
    There it is ended, too, once `enough(facts so far)` says so: that is no error. One that computes or reads on gets
    PATIENCE times its limit.
    """
    folders = [str(PROGRAM), str(PROGRAM / "kernels"), environment.get("PYTHONPATH", "")]
    # -P: a triton.py in the working directory must not shadow the package; utf8: a legacy console's encoding would
    # hide the real error behind a UnicodeEncodeError; -u: what it said before a crash must be there.
    limit_s = str(PATIENCE * timeout_s + MARGIN_S)
    command = [sys.executable, "-P", "-u", "-X", "utf8", "-c", START, limit_s, module, *arguments]
    variables = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return ask_program(
        command, timeout_s=timeout_s, environment=variables, heard=heard, enough=enough, patience=PATIENCE
    )


def ask_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    heard: Callable[[Mapping[str, Any]], None] | None = None,
    enough: Callable[[Mapping[str, Any]], bool] | None = None,
    patience: int = 1,
) -> ChildAnswer:
    """Run any program and return its Answer; never raises for what the program does.

    `heard`, `enough`: as in run_child. patience: so many times its limit it gets while it computes or reads; with more
    than 1 it is one that says on SIGUSR1 where it is.
    """
    # Files and not pipes: a compiler left behind by a killed child would keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment),
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except (
            OSError,
            ValueError,
        ) as error:  # no such program, not one for this processor, blocked by a policy
            return ChildAnswer(error=f"{type(error).__name__}: {error}")
        timed_out = cut = False
        try:
            code = _wait(child, timeout_s, output, heard, enough, patience)
        except subprocess.TimeoutExpired:
            timed_out, code = True, 0
            if patience > 1 and hasattr(signal, "SIGUSR1"):
                child.send_signal(signal.SIGUSR1)
                time.sleep(LAST_WORDS_S)
            _kill(child)
        if code is None:
            cut, code = True, 0
            _kill(child)
        said, complaint = _read_tail(output), _read_tail(errors)
    facts = _read_facts(said)
    if timed_out:
        hung = f"It did not answer within {timeout_s:g} s."
        place = PLACE.search(complaint) if patience > 1 else None
        if place:
            hung += f" It was in {place[3]} ({'/'.join(place[1].split('/')[-3:])}, line {place[2]})."
        return ChildAnswer(facts=facts, said=said, error=hung, timed_out=True)
    if code == 0:
        return ChildAnswer(facts=facts, said=said, cut=cut)
    return ChildAnswer(facts=facts, said=said, error=_explain(code, complaint))


def hand_over(**facts: Any) -> None:
    """In a child: tell the parent these facts."""
    print(MARK + json.dumps(facts), flush=True)


def describe_end(code: int) -> str:
    """Return in English how a process ended that said nothing."""
    if code < 0:
        known = {member.value: f" ({member.name})" for member in signal.Signals}
        return f"It was ended by signal {-code}{known.get(-code, '')}."
    return f"It ended with exit code {code}" + (f" (0x{code:08X})." if code > 255 else ".")


def _wait(
    child: subprocess.Popen,
    timeout_s: float,
    output: IO[bytes],
    heard: Callable[[Mapping[str, Any]], None] | None,
    enough: Callable[[Mapping[str, Any]], bool] | None,
    patience: int,
) -> int | None:
    """Return the exit code of `child`, telling meanwhile what it hands over; None once that is enough.

    Raises TimeoutExpired.
    """
    listens = (heard is not None or enough is not None) and hasattr(os, "pread")
    if not listens and patience == 1:
        return child.wait(timeout=timeout_s)
    began_s, told, facts, progress = time.monotonic(), 0, {}, Progress(child.pid)
    while True:
        ends_s = began_s + timeout_s * (patience if progress.goes_on() else 1)
        try:
            return child.wait(timeout=max(0.0, min(LISTEN_S, ends_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            # Not by seek: the child writes where the file that both share is at.
            said = os.pread(output.fileno(), TAIL_BYTES, 0) if listens else b""
            if len(said) > told:
                told, facts = len(said), _read_facts(said.decode("utf-8", "replace"))
                if heard is not None:
                    heard(facts)
            if enough is not None and enough(facts):
                return None
            if time.monotonic() >= ends_s:
                raise


class Progress:
    """Whether a process computes or reads: seen once a second."""

    def __init__(self, pid: int) -> None:
        self._pid, self._seen_s, self._before, self._going = pid, time.monotonic(), (0.0, 0), True

    def goes_on(self) -> bool:
        """Return whether it got on within the last second that was looked at."""
        import psutil

        if time.monotonic() - self._seen_s >= 1.0:
            try:
                process = psutil.Process(self._pid)
                spent = process.cpu_times()
                read = process.io_counters().read_bytes if hasattr(process, "io_counters") else 0
            except psutil.Error:
                return False
            now = (spent.user + spent.system, read)
            self._going = now[0] - self._before[0] >= PROGRESS_S or now[1] - self._before[1] >= PROGRESS_BYTES
            self._before, self._seen_s = now, time.monotonic()
        return self._going


def _kill(child: subprocess.Popen) -> None:
    """Kill `child` and what it started. It stays in our own process group, so that it cannot outlive the studio."""
    import psutil

    try:
        family = psutil.Process(child.pid).children(recursive=True)
    except psutil.Error:
        family = []
    child.kill()
    for member in family:
        try:
            member.kill()
        except psutil.Error:
            continue  # it ended by itself
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return
    psutil.wait_procs(family, GRACE_S)  # what they held of a card is free again


def _read_tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    return file.read().decode("utf-8", "replace")


def _read_facts(said: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith(MARK):
            try:
                facts |= parse_json(line[len(MARK) :])
            except ValueError:
                continue  # torn by the end of the process
    return facts


def _explain(code: int, complaint: str) -> str:
    """Return the last exception's type and whole message, the reason of an orderly exit, or how the process ended."""
    lines = [line.rstrip() for line in complaint.splitlines() if line.strip()]
    starts = [index for index, line in enumerate(lines) if line == TRACEBACK]
    if starts and code == 1:
        rest = lines[starts[-1] + 1 :]
        first = next((index for index, line in enumerate(rest) if not line.startswith(" ")), len(rest))
        if first < len(rest):
            # `triton.runtime.errors.PTXASError: ...` is known by its own name.
            return re.sub(r"^(?:\w+\.)+(?=\w+:)", "", "\n".join(rest[first:]))[:LONGEST_ERROR]
    last = lines[-1].strip()[:LONGEST_ERROR] if lines else ""
    if last and code == 1:
        return last
    return f"{describe_end(code)} Its last words: {last}" if last else describe_end(code)
