"""The command `wsl`: what this Windows has for Linux, what is missing there, and the studio opened in it.

What the Linux side gets: ~/finetune-studio, a copy of this program with a .venv of its own, and ~/.finetune-studio
with what studio/cli/wsl_crossing.py leaves there. The Windows side holds its claims while Linux works; Linux ends with
it.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import threading
from dataclasses import dataclass

from studio.cli.console import Console
from studio.cli.wsl_crossing import Crossing, Machine
from studio.core.errors import Problem, StudioError
from studio.core.facts import Distribution
from studio.core.i18n import text
from studio.machine import wsl
from studio.machine.workspace import Workspace
from studio.machine.wsl_lease import keep_fresh


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What there is on the way: `chosen` and its `guest` are None where there is none."""

    state: str
    found: tuple[Distribution, ...]
    chosen: Distribution | None
    guest: wsl.Guest | None
    problems: tuple[Problem, ...]

    @property
    def ready(self) -> bool:
        """Whether the studio can be set up there, or is."""
        return self.guest is not None and not any(each.severity == "error" for each in self.problems)


def run_wsl(
    options: argparse.Namespace, workspace: Workspace, console: Console, machine: Machine | None = None
) -> int:
    """Do the command `wsl` and return its exit code: --check reports, --prepare sets up, else the studio opens there.

    Raises StudioError outside Windows, where WSL or something in it is missing, and where the workspace is in use.
    """
    if options.inside:
        return _work_inside(options, workspace)
    machine = machine or Machine()
    system = machine.system or platform.system()
    if system != "Windows":
        raise StudioError(
            text("wsl.not_windows", system=system), text("wsl.not_windows.why"), text("wsl.not_windows.fix")
        )
    if not options.json:
        console.say(text("wsl.looking"))
    survey = look(options.distribution, machine)
    if options.check:
        return _report(survey, console)
    _refuse_unready(survey, options.distribution)
    assert survey.chosen and survey.guest
    crossing = Crossing(
        workspace=workspace, console=console, machine=machine, name=survey.chosen.name, guest=survey.guest
    )
    return crossing.go(options, survey.problems)


def look(wanted: str = "", machine: Machine | None = None) -> Survey:
    """Return what WSL has; the distribution `wanted` (else the default one) is started for it and asked."""
    machine = machine or Machine()
    state, found = wsl.list_distributions(machine.run, wsl=machine.wsl)
    chosen = wsl.choose_distribution(found, wanted)
    guest, said = None, ""
    if chosen and chosen.version == 2:
        guest, said = wsl.probe_distribution(chosen.name, machine.run, wsl=machine.wsl)
    problems = wsl.judge_distribution(chosen, guest, said) if chosen else ()
    return Survey(state=state, found=found, chosen=chosen, guest=guest, problems=problems)


def _refuse_unready(survey: Survey, wanted: str) -> None:
    if survey.chosen is None and wanted and survey.found:
        names = ", ".join(each.name for each in survey.found)
        raise StudioError(
            text("wsl.unknown", name=wanted), text("wsl.unknown.why", names=names), text("wsl.unknown.fix")
        )
    if survey.chosen is None:
        step = wsl.setup_steps(survey.state, survey.found)[0]
        raise StudioError(text("wsl.none"), step.why, text("wsl.none.fix", command=step.command))
    errors = [each for each in survey.problems if each.severity == "error"]
    if errors:
        raise StudioError(
            errors[0].message, text("wsl.needed", name=survey.chosen.name), errors[0].fix, exit_code=1
        )


def _report(survey: Survey, console: Console) -> int:
    steps = wsl.setup_steps(survey.state, survey.found)
    chosen = survey.chosen.name if survey.chosen else ""
    guest = survey.guest
    listed = [
        {
            "name": each.name,
            "version": each.version,
            "default": each.default,
            "running": each.running,
            "gpu": guest.gpu if guest and each.name == chosen else None,
            "python": ", ".join(guest.usable_pythons) if guest and each.name == chosen else "",
        }
        for each in survey.found
    ]
    data = {
        "state": survey.state,
        "ready": survey.ready,
        "chosen": chosen,
        "distributions": listed,
        "problems": [console.problem(each) for each in survey.problems],
        "steps": [{"title": step.title, "why": step.why, "command": step.command} for step in steps],
    }
    say = console.catalogue.say
    lines = [f"{'*' if each.default else ' '} {each.name} (WSL {each.version})" for each in survey.found]
    if guest:
        yes, no = text("word.yes"), text("word.no")
        facts = {"name": chosen, "gpu": yes if guest.gpu else no, "ready": yes if guest.ready else no}
        lines.append(say(text("wsl.facts", python=", ".join(guest.usable_pythons) or "-", **facts)))
    lines += [f"- {say(each.message)} {say(each.fix)}" for each in survey.problems]
    lines += [f"- {say(step.title)}: {step.command}\n  {say(step.why)}" for step in steps]
    lines.append(say(text("wsl.ready" if survey.ready else "wsl.not_ready", name=chosen)))
    console.answer(data, lines)
    return 0 if survey.ready else 1


def _work_inside(options: argparse.Namespace, workspace: Workspace) -> int:
    """The Linux side: a supervised studio that ends when Windows says `stop`, or is gone."""
    from studio.supervisor.restarts import supervise

    def listen() -> None:
        rest = b""
        while data := os.read(0, 4096):
            *lines, rest = (rest + data).split(b"\n")
            if b"stop" in (line.strip() for line in lines):
                break
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=listen, name="windows", daemon=True).start()
    with keep_fresh(workspace):
        command = ["studio", "--no-browser", *(["--port", str(options.port)] if options.port else [])]
        return supervise(command, workspace, headless=False)
