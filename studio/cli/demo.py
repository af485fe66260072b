"""`demo`: trains the bundled model on its rows, or by comparing or scoring answers, and measures before and after."""

from __future__ import annotations

import argparse

from studio.cli.console import Console
from studio.cli.train import answer_run, follow, open_desk
from studio.machine.workspace import Workspace


def demo(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services import preference_demo, reward_demo
    from studio.services.demo import run_demo
    from studio.services.demo_runs import is_of_demo

    desk = open_desk(workspace)
    kinds = {
        "dpo": (preference_demo.ROWS, preference_demo.run_preference_demo),
        "grpo": (reward_demo.ROWS, reward_demo.run_reward_demo),
    }
    resume, run = options.resume, run_demo
    for objective, (rows, run_kind) in kinds.items():
        if is_of_demo(desk, resume, rows) if resume else options.objective == objective:
            run = run_kind
    record, extra, lines = run(
        desk, resume, lambda run, after: follow(desk, run, console, after), console.progress
    )
    for line in lines:
        if not console.as_json:
            print(console.catalogue.say(line), flush=True)
    return answer_run(record, workspace, console, extra)
