"""`runs`: the workspace's runs, newest first."""

from __future__ import annotations

import argparse

from studio.cli.console import Console
from studio.cli.plan import list_slower
from studio.core.i18n import text
from studio.machine.workspace import Workspace


def runs(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.planning.slow_paths import say_times
    from studio.services.desk import Desk

    records = Desk(workspace).runs.list()
    entries = [
        {
            "run": record.run,
            "name": record.name,
            "state": record.state,
            "steps": record.steps,
            "total_steps": record.total_steps,
            "loss": record.loss,
            "base": record.base,
            "created_s": record.created_s,
            "slower": console.plain(list_slower(record.slower)),
        }
        for record in records
    ]
    lines = [
        f"{e['run']:32} {e['state']:9} {e['steps']:>6}/{e['total_steps']:<6} "
        f"{'-' if e['loss'] is None else format(e['loss'], '.4f'):>8}  {e['base']}"
        + (f"  ({console.catalogue.say(say_times(record.slower))})" if record.slower else "")
        for e, record in zip(entries, records, strict=True)
    ]
    console.answer({"runs": entries}, lines or [console.catalogue.say(text("cli.runs.none"))])
    return 0
