"""`import`: a recipe made of another tool's config, command or script, with what became of each of its settings."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studio.cli.console import Console
from studio.core.atomic_files import write_file
from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import change_recipe
from studio.machine.workspace import Workspace
from studio.services.other_tools.importer import import_file
from studio.services.other_tools.translation import FATES, ImportedRecipe, settings_json

NEEDED = ("model.source", "data.source")


def import_recipe(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Show what a file of another tool becomes here, and write it where `--out` says; a folder becomes a run."""
    if Path(options.file).expanduser().is_dir():
        return _import_folder(options, workspace, console)
    made = import_file(options.file)
    given = {"model.source": options.model, "data.source": options.data}
    given |= {"objective": options.objective}
    given = {path: value for path, value in given.items() if value}
    made = dataclasses.replace(
        made, recipe=change_recipe(made.recipe, given), set=tuple(dict.fromkeys((*made.set, *given)))
    )
    recipe = settings_json(made)
    missing = [path for path in NEEDED if path not in made.set]
    if options.out:
        _write(Path(options.out), recipe)
    lines = [{**to_json(one), "reason": one.reason} for one in made.lines]
    answer = {"tool": made.tool, "recipe": recipe, "lines": lines, "open": missing}
    console.answer(
        answer | {"path": options.out or None}, _list_lines(made, recipe, missing, options.out, console)
    )
    return 0


def _import_folder(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Take a result that another tool made, or a run of another workspace, as a run of this one."""
    from studio.services.result_import import import_result, is_result
    from studio.services.run_import import import_run

    folder = Path(options.file).expanduser()
    workspace.runs.mkdir(parents=True, exist_ok=True)
    if (folder / "run.json").is_file() and not is_result(folder):
        run = import_run(folder, workspace.runs)
        console.answer({"run": run}, [run])
        return 0
    made = import_result(folder, workspace.runs, options.model)
    maker = made.maker or text("cli.import.maker.none")
    kind = text(f"cli.import.kind.{made.kind}")
    line = text("cli.import.result", name=made.run, kind=kind, base=made.base or made.run, maker=maker)
    console.answer(
        to_json(made) | {"notes": list(made.notes)}, map(console.catalogue.say, (line, *made.notes))
    )
    return 0


def _write(path: Path, recipe: dict[str, Any]) -> None:
    if path.exists():
        why, fix = text("cli.import.exists.why"), text("cli.import.exists.fix")
        raise StudioError(text("cli.import.exists", path=str(path)), why, fix)
    write_file(path, (json.dumps(recipe, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))


def _list_lines(
    made: ImportedRecipe, recipe: dict[str, Any], missing: list[str], path: str, console: Console
) -> Iterator[str]:
    """Yield the table for a person: what became of each setting, by fate, then the recipe."""
    say = console.catalogue.say
    for fate in FATES:
        lines = [one for one in made.lines if one.fate == fate]
        if lines:
            yield f"{say(text(f'imported.fate.{fate}'))}:"
        for one in lines:
            left = f"{one.place}: {one.key} = {one.written}" if one.written else one.key
            right = f" → {one.setting} = {one.value}" if one.setting else ""
            yield f"  {left}{right}  {say(one.reason)}"
    if missing:
        yield say(text("cli.import.open", names=", ".join(missing)))
    if path:
        yield say(text("cli.import.written", path=path))
    else:
        yield say(text("cli.import.title", tool=made.tool))
        yield json.dumps(recipe, ensure_ascii=False, indent=1)
