"""Runs what could hang or crash in a child process with a time limit: whatever becomes of it is an answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from studio.host.probes.surroundings import PROGRAM

MARK = "FACTS "
"""Opens each line in which a probe hands over facts, as JSON; later lines win."""
TAIL_BYTES = 64_000
LONGEST_ERROR = 4000
"""Characters: an assembler's complaint with its command is 1,000 to 2,000."""
GRACE_S = 2.0
"""A process stuck in a driver cannot be killed: it is left behind after this."""
MARGIN_S = 1.0
START = """
import faulthandler, os, runpy, sys
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True, file=open(os.devnull, "w"))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module that ends by itself MARGIN_S after its time limit: its parent may have been killed meanwhile."""
TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a child process said and how it ended."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it handed over, also when it died later."""
    said: str = ""
    """The end of its standard output."""
    error: str = ""
    """Why it failed: the exception's whole text, its last words or how it ended; "" when it ended well."""
    timed_out: bool = False


def run_child(
    module: str, arguments: Sequence[str] = (), *, timeout_s: float, environment: Mapping[str, str]
) -> Answer:
    """Run `module` as a program of this interpreter and return its Answer; never raises for what the child does."""
    folders = [str(PROGRAM), str(PROGRAM / "kernels"), environment.get("PYTHONPATH", "")]
    # -P: a triton.py in the working directory must not shadow the package; utf8: a legacy console's encoding would
    # hide the real error behind a UnicodeEncodeError; -u: what it said before a crash must be there.
    limit_s = str(timeout_s + MARGIN_S)
    command = [sys.executable, "-P", "-u", "-X", "utf8", "-c", START, limit_s, module, *arguments]
    variables = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return ask_program(command, timeout_s=timeout_s, environment=variables)


def ask_program(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]) -> Answer:
    """Run any program and return its Answer; never raises for what the program does."""
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
            return Answer(error=f"{type(error).__name__}: {error}")
        timed_out = False
        try:
            code = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out, code = True, 0
            _kill(child)
        said, complaint = _read_tail(output), _read_tail(errors)
    facts = _read_facts(said)
    if timed_out:
        return Answer(
            facts=facts, said=said, error=f"It did not answer within {timeout_s:g} s.", timed_out=True
        )
    if code == 0:
        return Answer(facts=facts, said=said)
    return Answer(facts=facts, said=said, error=_explain(code, complaint))


def hand_over(**facts: Any) -> None:
    """In a child: tell the parent these facts."""
    print(MARK + json.dumps(facts), flush=True)


def describe_end(code: int) -> str:
    """Return in English how a process ended that said nothing."""
    if code < 0:
        known = {member.value: f" ({member.name})" for member in signal.Signals}
        return f"It was ended by signal {-code}{known.get(-code, '')}."
    return f"It ended with exit code {code}" + (f" (0x{code:08X})." if code > 255 else ".")


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


def _read_tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    return file.read().decode("utf-8", "replace")


def _read_facts(said: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith(MARK):
            try:
                facts |= json.loads(line[len(MARK) :])
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
