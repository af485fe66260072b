"""The demo of comparing answers: a model that says records in two styles, and learns by pairs to say them in one.

First it is fine-tuned on rows of which most say the record as a sentence, the others as JSON. Then DPO compares both
styles of each row, with a loss of the better one's own beside it. Measured on prompts that were never trained on: how
many answers are in the wanted style, and how many are right in whichever style.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_file
from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.core.recipe import Recipe, change_recipe
from studio.core.run_record import RunRecord
from studio.services.demo import HELD_OUT, SHOWN, let_answer, read_held_out
from studio.services.desk import Desk

TRAIN = HELD_OUT.with_name("train.jsonl")
WANTED_SHARE = 0.3
"""Of the rows that the start learns from, those in the wanted style."""
FOLDER = "demo"
SIDES = ("before", "after")


def run_preference_demo(
    desk: Desk,
    resume: str,
    follow: Callable[[str, int], RunRecord],
    progress: Callable[[Text, int, int], None],
) -> tuple[RunRecord, dict[str, Any], list[Text]]:
    """Train both runs (or go on with run `resume`), measure; returns as demo.run_demo() does. Raises StudioError."""
    nothing = dict.fromkeys(("style_before", "style_after", "accuracy_before", "accuracy_after")) | {
        "held_out": 0
    }
    first, second = resume, ""
    if resume and desk.runs.recipe(resume).objective == "dpo":
        second, first = resume, Path(desk.runs.recipe(resume).model.adapter).parent.name
    record = _go(desk, first, lambda: make_start(desk), follow)
    if record.state != "finished":
        return record, nothing, []
    start = record
    record = _go(desk, second, lambda: make_comparison(desk, start), follow)
    if record.state != "finished":
        return record, nothing, []
    prompts, expected = read_held_out()
    answers = {}
    for side, run in zip(SIDES, (start.run, record.run), strict=True):
        label = text(f"demo.measure.{'base' if side == 'before' else 'tuned'}")
        answers[side] = let_answer(desk, run, "tuned", prompts, label, progress)
    found: dict[str, Any] = {}
    for side, given in answers.items():
        found[f"style_{side}"] = sum(one.strip().startswith("{") for one in given) / len(given)
        right = (
            one.strip() in (wanted, say_plainly(wanted)) for one, wanted in zip(given, expected, strict=True)
        )
        found[f"accuracy_{side}"] = sum(right) / len(given)
    lines = [
        text(
            "demo.example",
            prompt=prompts[i][-1]["content"],
            before=answers["before"][i].strip(),
            after=answers["after"][i].strip(),
        )
        for i in range(SHOWN)
    ]
    percent = {name: f"{100 * share:.0f}" for name, share in found.items()}
    lines.append(text("demo.result.dpo", count=len(expected), **percent))
    return record, {**found, "held_out": len(expected)}, lines


def is_of_preference_demo(desk: Desk, run: str) -> bool:
    """Return whether `run` is one of the two of this demo, by its rows."""
    return Path(desk.runs.recipe(run).data.source).parent == desk.workspace.root / FOLDER


def _go(
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


def make_start(desk: Desk) -> Recipe:
    """Return the recipe that teaches the model both styles, its rows written."""
    chance = random.Random(desk.recipes.demo().seed)
    rows = [
        {"messages": [asked, answer if chance.random() < WANTED_SHARE else _in_words(answer)]}
        for asked, answer in _read_rows()
    ]
    changes = {"name": "styles", "optim.epochs": 3.0, "data.source": _write(desk, "styles.jsonl", rows)}
    return change_recipe(desk.recipes.demo(), changes)


def make_comparison(desk: Desk, start: RunRecord) -> Recipe:
    """Return the recipe that compares the styles, from what `start` has learned on, its rows written."""
    rows = [
        {"prompt": [asked], "chosen": [answer], "rejected": [_in_words(answer)]}
        for asked, answer in _read_rows()
    ]
    changes = {
        "name": "dpo",
        "objective": "dpo",
        "model.adapter": str(desk.workspace.runs / start.run / start.artifact),
        "data.source": _write(desk, "pairs.jsonl", rows),
        "preference.nll_weight": 1.0,
        "optim.learning_rate": 5e-4,
        "optim.epochs": 1.0,
    }
    return change_recipe(desk.recipes.demo(), changes)


def _read_rows() -> list[tuple[dict[str, str], dict[str, str]]]:
    rows = [parse_json(line)["messages"] for line in TRAIN.read_text(encoding="utf-8").splitlines()]
    return [(row[-2], row[-1]) for row in rows]


def _in_words(answer: dict[str, str]) -> dict[str, str]:
    return answer | {"content": say_plainly(answer["content"])}


def say_plainly(record: str) -> str:
    """Return a record, which is JSON, as a sentence."""
    found = parse_json(record)
    return "{name} in {city} gets {count} of the {color} {item}.".format(**found)


def _write(desk: Desk, name: str, rows: list[dict[str, Any]]) -> str:
    folder = desk.workspace.root / FOLDER
    folder.mkdir(exist_ok=True)
    words = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_file(folder / name, words.encode("utf-8"))
    return str(folder / name)
