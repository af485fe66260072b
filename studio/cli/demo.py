"""`demo`: trains the bundled model on the bundled data, or on pairs made of them, and measures it before and after."""

from __future__ import annotations

import argparse

from studio.cli.console import Console
from studio.cli.train import answer_run, follow, open_desk
from studio.machine.workspace import Workspace


def demo(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.demo import run_demo
    from studio.services.preference_demo import is_of_preference_demo, run_preference_demo

    desk = open_desk(workspace)
    resume = options.resume
    compares = is_of_preference_demo(desk, resume) if resume else options.objective == "dpo"
    record, extra, lines = (run_preference_demo if compares else run_demo)(
        desk, options.resume, lambda run, after: follow(desk, run, console, after), console.progress
    )
    for line in lines:
        if not console.as_json:
            print(console.catalogue.say(line), flush=True)
    return answer_run(record, workspace, console, extra)
