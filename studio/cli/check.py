"""`check`: what is wrong with a recipe, each problem with what to do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from studio.cli.console import Console
from studio.core.errors import RecipeError
from studio.core.i18n import text
from studio.machine.workspace import Workspace
from studio.services.recipes import read_recipe


def check(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk

    try:
        problems = Desk(workspace, keep_queue=False).recipes.check(read_recipe(options.recipe, console.note))
    except RecipeError as error:
        problems = error.problems
    ok = not any(problem.severity == "error" for problem in problems)
    said = [console.problem(problem) for problem in problems]
    lines = [line for entry in said for line in _list_problem(entry, console)]
    console.answer({"ok": ok, "problems": said}, lines or [console.catalogue.say(text("cli.check.ok"))])
    return 0 if ok else 2


def _list_problem(entry: Mapping[str, Any], console: Console) -> Iterator[str]:
    """Yield a problem, then the changes that help, each as the recipe takes it."""
    line = f"{entry['field']}: {entry['message']} {entry['fix']}".removeprefix(": ")
    warned = text("event.warned", message=line)
    yield console.catalogue.say(warned) if entry["severity"] == "warning" else line
    for way in entry.get("ways", ()):
        change = ", ".join(f"{path} = {json.dumps(value)}" for path, value in way["change"].items())
        yield f"  - {way['title']} ({change})"
