"""`eval RUN --tasks NAME`: tasks of lm-evaluation-harness, for a run's model, its base and checkpoints."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.machine.workspace import Workspace

OTHERS = ("data", "metrics", "judge", "rubric", "out", "system", "pattern")
"""Options of rows of one's own: a task brings its own rows, and says what is right."""


def evaluate(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Measure the named tasks. Raises StudioError."""
    from studio.services.task_evaluations import evaluate_tasks, require_harness

    for name in OTHERS:
        if getattr(options, name):
            raise StudioError(
                text("eval.tasks.other", option=f"--{name}"),
                text("eval.tasks.other.why"),
                text("eval.tasks.other.fix"),
            )
    require_harness()
    from studio.engine.task_harness import TaskWish
    from studio.services.desk import Desk
    from studio.supervisor.restarts import stop_requests

    wish = TaskWish(
        tasks=tuple(split(options.tasks)), folder=options.tasks_folder, shots=options.shots, rows=options.rows
    )
    desk = Desk(workspace)
    desk.machine.hurry(lambda: True)  # kernels are proved by the first answer itself
    contenders = desk.evaluations.contenders(options.name, split(options.beside), options.checkpoint)
    with stop_requests() as asked:

        def should_stop() -> bool:
            if len(asked) > 1:
                raise KeyboardInterrupt
            return bool(asked)

        found = evaluate_tasks(desk.chat, contenders, wish, tell=console.progress, should_stop=should_stop)
    whole = len(found) == len(contenders)
    data = {"name": options.name, "state": "finished" if whole else "stopped", "sides": describe(found)}
    console.answer(
        data, [*list_lines(data["sides"]), *([] if whole else [console.catalogue.say(text("eval.stopped"))])]
    )
    return 0 if whole else 1


def describe(found: Sequence[tuple[Any, Sequence[Any]]]) -> dict[str, Any]:
    """Return model -> task -> metric -> value, standard error and rows."""
    sides: dict[str, Any] = {}
    for contender, scores in found:
        tasks = sides.setdefault(contender.name, {})
        for one in scores:
            name = one.metric if one.filter == "none" else f"{one.metric},{one.filter}"
            told = {"value": _finite(one.value), "error": _finite(one.error), "rows": one.rows}
            tasks.setdefault(one.task, {})[name] = told
    return sides


def list_lines(sides: dict[str, Any]) -> list[str]:
    """Return a line a task and metric, with all models beside each other."""
    places = dict.fromkeys(
        (task, metric) for tasks in sides.values() for task in tasks for metric in tasks[task]
    )
    lines = []
    for task, metric in places:
        shown = [
            f"{name} {_show(tasks[task][metric])}"
            for name, tasks in sides.items()
            if metric in tasks.get(task, {})
        ]
        lines.append(f"{task} {metric}: " + "   ".join(shown))
    return lines


def split(words: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in words.split(",") if word.strip()]


def _show(score: dict[str, Any]) -> str:
    value, error = ("∞" if score[part] is None else f"{score[part]:.4g}" for part in ("value", "error"))
    return value if score["error"] is None else f"{value} ± {error}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
