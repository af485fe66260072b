"""What the demos of two runs share: a start that is made on purpose, and a second run that goes on from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_file
from studio.core.json_file import parse_json
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.services.demo import HELD_OUT
from studio.services.desk import Desk

TRAIN = HELD_OUT.with_name("train.jsonl")
FOLDER = "demo"


def find_pair(desk: Desk, run: str, objective: str) -> tuple[str, str]:
    """Return the ids of the start and of the run of `objective` that goes on from it, of which `run` is one; "": none.

    A start is known by its second run alone, where that is `run`.
    """
    if not run:
        return "", ""
    recipe = desk.runs.recipe(run)
    if recipe.objective == objective:
        return Path(recipe.model.adapter).parent.name, run
    return run, ""


def is_of_demo(desk: Desk, run: str, rows: Sequence[str]) -> bool:
    """Return whether `run` is one of a demo's, by the names of the demo's files of rows."""
    source = Path(desk.runs.recipe(run).data.source)
    return source.parent == desk.workspace.root / FOLDER and source.name in rows


def go(
    desk: Desk, run: str, make: Callable[[], Recipe], follow: Callable[[str, int], RunRecord]
) -> RunRecord:
    """Return the record of `run`, gone on with where it has not ended well; of a new run of make() where it is ""."""
    if not run:
        return follow(desk.queue.start(make(), checked=True), 0)
    record = desk.runs.read(run)
    if record.state == "finished":
        return record
    after = max((event.seq for event in desk.runs.events(run)), default=0)
    desk.queue.resume(run)
    return follow(run, after)


def read_rows(path: Path = TRAIN) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return what is asked and what is answered in each of the demo's rows, as messages."""
    rows = [parse_json(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row[-2], row[-1]) for row in rows]


def write_rows(desk: Desk, name: str, rows: list[dict[str, Any]]) -> str:
    """Write rows into the workspace's folder of the demos; returns the path of the file."""
    folder = desk.workspace.root / FOLDER
    folder.mkdir(exist_ok=True)
    words = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_file(folder / name, words.encode("utf-8"))
    return str(folder / name)
