"""The doctor: looks at this machine or at a recorded one, and says in order what works and what to do."""

from __future__ import annotations

import argparse
import codecs
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studio.cli.console import Console
from studio.core.codec import from_json, to_json
from studio.core.errors import RecipeError, StudioError
from studio.core.facts import MachineFacts
from studio.core.i18n import Catalogue, Text, literal, text
from studio.core.json_file import parse_json
from studio.machine.workspace import Workspace
from studio.planning.suggestions import launcher

ROOT = Path(__file__).resolve().parents[2]
INDENT = " " * 10


def doctor(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Answer the command `doctor`; the exit code is 1 when nothing can train here, else 0. Raises StudioError."""
    from studio.machine.redact import redact
    from studio.planning.doctor_report import judge

    if options.fix or options.leave:
        return _switch(options, workspace)
    if options.facts:
        machine = read_facts(Path(options.facts))
    else:
        console.note(text("doctor.looking"))
        machine = _look(workspace, fresh=options.again, hub=options.network)
    report = judge(machine)
    said = _say(report, console)
    if console.as_json:
        console.answer(redact(said))
    elif options.copy:
        lines = [*list_lines(report, console.catalogue), "", json.dumps(said["facts"], ensure_ascii=False)]
        console.answer({}, redact(lines))
    else:
        console.answer({}, list_lines(report, console.catalogue))
    return 1 if report["verdict"] == "blocked" else 0


def read_facts(path: Path) -> MachineFacts:
    """Return the machine recorded in a file: bare facts, or an object that holds them as `facts`, as `--json` answers.

    Raises StudioError, in words about such a file, when it cannot be read or holds something else.
    """
    try:
        content = path.read_bytes()
        # PowerShell's > writes UTF-16.
        marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        data = parse_json(content.decode("utf-16" if marked else "utf-8-sig"))
    except OSError as error:
        raise _refuse("unreadable", path, literal(error.strerror or type(error).__name__)) from error
    except ValueError as error:  # no JSON, or not UTF-8
        raise _refuse("no_json", path, literal(str(error).splitlines()[0])) from error
    if isinstance(data, Mapping) and isinstance(data.get("facts"), Mapping):
        data = data["facts"]
    if not isinstance(data, Mapping) or "system" not in data:
        raise _refuse("other", path, text("doctor.facts.other.why"))
    try:
        return from_json(MachineFacts, data)
    except RecipeError as error:
        fields = ", ".join(problem.field for problem in error.problems[:5])
        raise _refuse("wrong", path, text("doctor.facts.wrong.why", fields=fields)) from error


def _look(workspace: Workspace, *, fresh: bool, hub: bool) -> MachineFacts:
    """Return this machine's facts, with the kernels that failed in earlier runs and what is free of its cards now.

    What its probes found holds until something changes that it depends on; `fresh` probes anew (20 s with a card).
    """
    from studio.machine.cards import look_at_memory
    from studio.machine.detect import detect
    from studio.planning.learned_limits import Remembered

    machine = look_at_memory(
        detect(workspace_root=workspace.root, cache=workspace.facts, fresh=fresh, hub=hub)
    )
    broken = Remembered(workspace.remembered).broken_kernels(machine)
    return dataclasses.replace(machine, broken_kernels=broken)


def list_lines(report: dict[str, Any], catalogue: Catalogue) -> Iterator[str]:
    """Yield `report` (of studio.planning.doctor_report.judge) as lines for a person, without colours."""
    say = catalogue.say
    yield say(text(f"doctor.verdict.{report['verdict']}"))
    yield from (say(reason) for reason in report["reasons"])
    yield ""
    problems = {problem["id"]: problem for problem in report["problems"]}
    for number, check in enumerate(report["checks"], start=1):
        mark = say(text(f"doctor.mark.{check['verdict']}"))
        words = say(text("doctor.check", tried=check["tried"], evidence=check["evidence"]))
        yield f"{number:2}. {mark}  {words}"
        own = [problems[id] for id in check["problems"]]
        for problem in own:
            yield from _list_problem(problem, report["facts"], say)
        if check["fix"] is not None and not own:
            yield f"{INDENT}-> {say(check['fix'])}"
        if check["repair"]:
            command = f"{launcher(report['facts'])} doctor --leave {check['repair']}"
            yield f"{INDENT}-> {say(text('doctor.leave', command=command))}"
    if report["offers"]:
        yield ""
        yield say(text("doctor.offers"))
        for offer in report["offers"]:
            yield f"  * {say(text('doctor.offer', title=offer.title, why=offer.why))}"
            if offer.command:
                yield f"      {offer.command}"
    yield ""
    yield say(text("doctor.more"))


def _list_problem(problem: dict[str, Any], machine: MachineFacts, say: Any) -> Iterator[str]:
    code = f"{problem['code']} " if problem["code"] else ""
    yield f"{INDENT}{code}{say(problem['title'])}"
    evidence = say(problem["evidence"])
    if evidence:
        yield f"{INDENT}   {say(text('doctor.evidence', evidence=evidence))}"
    if problem["repaired"]:
        yield f"{INDENT}-> {say(text('doctor.repaired'))}"
        return
    yield f"{INDENT}-> {say(problem['fix'])}"
    if problem["auto"]:
        command = f"{launcher(machine)} doctor --fix {problem['repair']}"
        yield f"{INDENT}-> {say(text('doctor.auto', command=command))}"


def _say(report: dict[str, Any], console: Console) -> dict[str, Any]:
    """Return `report` as JSON data with every text said; ids of the reasons are kept beside their words."""
    facts = to_json(report["facts"])
    spoken = console.plain({key: value for key, value in report.items() if key != "facts"})
    ids = [reason.id for reason in report["reasons"] if isinstance(reason, Text)]
    return spoken | {"reason_ids": ids, "facts": facts}


def _switch(options: argparse.Namespace, workspace: Workspace) -> int:
    """Let a repair of our own environment be made, or leave it, and look again in a process that starts with it."""
    from studio.machine.failures import CATALOGUE
    from studio.machine.repairs import REPAIRS
    from studio.machine.settings import switch_repair

    if options.facts:
        what, why = text("doctor.fix.recorded"), text("doctor.fix.recorded.why")
        raise StudioError(what, why, text("doctor.fix.recorded.fix"))
    asked = options.fix or options.leave
    by_failure = {entry.id: entry.repair for entry in CATALOGUE if entry.repair}
    name = by_failure.get(asked, asked)
    known = [repair.name for repair in REPAIRS]
    if name not in known:
        why = text("doctor.fix.unknown.why", known=known)
        raise StudioError(text("doctor.fix.unknown", name=asked), why, text("doctor.fix.unknown.fix"))
    switch_repair(workspace, name, on=bool(options.fix))
    flags = [f"--{flag}" for flag in ("json", "copy", "network") if getattr(options, flag)]
    folders = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    again = [sys.executable, "-P", "-m", "studio.cli", "doctor", "--workspace", str(workspace.root), *flags]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return subprocess.run(again, env=environment, check=False).returncode


def _refuse(kind: str, path: Path, why: Text) -> StudioError:
    return StudioError(text(f"doctor.facts.{kind}", path=str(path)), why, text("doctor.facts.fix"))
