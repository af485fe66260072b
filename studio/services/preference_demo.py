"""The demo of comparing answers: a model that says records in two styles, and learns by pairs to say them in one.

First it is fine-tuned on rows of which most say the record as a sentence, the others as JSON. Then DPO compares both
styles of each row, with a loss of the better one's own beside it. Measured on prompts that were never trained on: how
many answers are in the wanted style, and how many are right in whichever style.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.core.recipe import Recipe, change_recipe
from studio.core.run_record import RunRecord
from studio.services.demo import SHOWN, let_answer, read_held_out
from studio.services.demo_runs import find_pair, go, read_rows, write_rows
from studio.services.desk import Desk

ROWS = ("styles.jsonl", "pairs.jsonl")
WANTED_SHARE = 0.3
"""Of the rows that the start learns from, those in the wanted style."""
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
    first, second = find_pair(desk, resume, "dpo")
    record = go(desk, first, lambda: make_start(desk), follow)
    if record.state != "finished":
        return record, nothing, []
    start = record
    record = go(desk, second, lambda: make_comparison(desk, start), follow)
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


def make_start(desk: Desk) -> Recipe:
    """Return the recipe that teaches the model both styles, its rows written."""
    chance = random.Random(desk.recipes.demo().seed)
    rows = [
        {"messages": [asked, answer if chance.random() < WANTED_SHARE else _in_words(answer)]}
        for asked, answer in read_rows()
    ]
    changes = {"name": "styles", "optim.epochs": 3.0, "data.source": write_rows(desk, ROWS[0], rows)}
    return change_recipe(desk.recipes.demo(), changes)


def make_comparison(desk: Desk, start: RunRecord) -> Recipe:
    """Return the recipe that compares the styles, from what `start` has learned on, its rows written."""
    rows = [
        {"prompt": [asked], "chosen": [answer], "rejected": [_in_words(answer)]}
        for asked, answer in read_rows()
    ]
    changes = {
        "name": "dpo",
        "objective": "dpo",
        "model.adapter": str(desk.workspace.runs / start.run / start.artifact),
        "data.source": write_rows(desk, ROWS[1], rows),
        "preference.nll_weight": 1.0,
        "optim.learning_rate": 5e-4,
        "optim.epochs": 1.0,
    }
    return change_recipe(desk.recipes.demo(), changes)


def _in_words(answer: dict[str, str]) -> dict[str, str]:
    return answer | {"content": say_plainly(answer["content"])}


def say_plainly(record: str) -> str:
    """Return a record, which is JSON, as a sentence."""
    found = parse_json(record)
    return "{name} in {city} gets {count} of the {color} {item}.".format(**found)
