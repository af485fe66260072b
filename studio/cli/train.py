"""`train` and `resume`: one run from here to its end, its events on the screen."""

from __future__ import annotations

import argparse
import os
import threading
from typing import Any

from studio.cli.console import Console
from studio.core import start_clock
from studio.core.i18n import text
from studio.core.run_record import RunRecord
from studio.machine.workspace import Workspace

EVENT_WAIT_S = 0.5


def train(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.preload import load_ahead, prepare_ahead, read_files_ahead
    from studio.services.recipes import read_recipe

    console.note(text("cli.starting"))
    desk = open_desk(workspace)
    ready = threading.Event()
    # A run that died is resumed with the whole test: it tells which kernel ends a process.
    if options.command == "train":
        desk.machine.hurry(ready.is_set)
    libraries = load_ahead(desk.machine, "studio.engine.run")
    if options.command == "train":
        recipe = read_recipe(options.recipe, console.note)
        start_clock.mark(os.environ, "check")
        read_files_ahead(workspace, recipe)
        prepare_ahead(libraries, desk.machine, recipe, ready.set)
        run, after = desk.queue.start(recipe), 0
    else:
        run = options.run
        after = max((event.seq for event in desk.runs.events(run)), default=0)
        desk.queue.resume(run)
    console.note(text("cli.run.named", run=run))
    record = follow(desk, run, console, after)
    return answer_run(record, workspace, console)


def follow(desk: Any, run: str, console: Console, after: int = 0) -> RunRecord:
    """Show a run's events until it ends and return its record."""
    cursor, told = after, False
    while True:
        active = desk.runs.active == run
        if active and desk.runs.stopping and not told:
            console.say(text("cli.stopping"))
            told = True
        for event in desk.runs.events(run, cursor, EVENT_WAIT_S if active else 0.0):
            console.show(event)
            cursor = event.seq
        if not active:
            return desk.runs.read(run)


def open_desk(workspace: Workspace) -> Any:
    """Return the Desk, stopped with a checkpoint when the supervisor asks for the end."""
    from studio.services.desk import Desk
    from studio.supervisor.parent_pipe import watch_parent

    desk = Desk(workspace, keep_queue=False)
    if os.environ.get("FINETUNE_STUDIO_PARENT"):
        watch_parent(desk.runs.stop_all)
    return desk


def answer_run(
    record: RunRecord, workspace: Workspace, console: Console, extra: dict[str, Any] | None = None
) -> int:
    # A run that ended while its result was being checked has one on disk that nobody should rely on.
    finished = record.state == "finished"
    artifact = workspace.runs / record.run / record.artifact if finished else None
    data = {
        "run": record.run,
        "state": record.state,
        "steps": record.steps,
        "loss": record.loss,
        "artifact": str(artifact) if artifact else None,
        "diagnosis": console.diagnosis(record.diagnosis),
    }
    lines = [console.catalogue.say(text(f"cli.run.{record.state}", run=record.run, path=str(artifact or "")))]
    if record.diagnosis:
        said = data["diagnosis"]
        lines += [said["what"], said["why"], *(f"  - {fix}" for fix in said["fixes"])]
    console.answer(data | (extra or {}), lines)
    return 1 if record.state == "failed" else 0
