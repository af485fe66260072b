"""The demo of learning by trying: a model that is right at times, and learns from a reward alone.

First it is fine-tuned on the demo's rows, and stopped early. Then GRPO lets it try, and a reward says which answers are
exactly right; it never sees a right answer again. Measured on prompts that were never trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studio.core.i18n import Text, text
from studio.core.recipe import Recipe, RewardSpec, change_recipe
from studio.core.run_record import RunRecord
from studio.services.demo import HELD_OUT, SHOWN, count_exact, let_answer, read_held_out
from studio.services.demo_runs import find_pair, go, read_rows, write_rows
from studio.services.desk import Desk

ROWS = ("beginning.jsonl", "questions.jsonl", "held_out.jsonl")
START_STEPS = 25
"""Greedy answers are right in 4 % of the held-out prompts then, after 26 steps in 62 %, after 40 in all."""
ANSWER_TOKENS = 64
"""The longest right answer has 56."""


def run_reward_demo(
    desk: Desk,
    resume: str,
    follow: Callable[[str, int], RunRecord],
    progress: Callable[[Text, int, int], None],
) -> tuple[RunRecord, dict[str, Any], list[Text]]:
    """Train both runs (or go on with run `resume`), measure; returns as demo.run_demo() does. Raises StudioError."""
    nothing = {"accuracy_before": None, "accuracy_after": None, "held_out": 0}
    first, second = find_pair(desk, resume, "grpo")
    start = go(desk, first, lambda: make_start(desk), follow)
    if start.state != "finished":
        return start, nothing, []
    record = go(desk, second, lambda: make_trying(desk, start), follow)
    if record.state != "finished":
        return record, nothing, []
    prompts, expected = read_held_out()
    answers = {
        side: let_answer(desk, run, "tuned", prompts, text(f"demo.measure.{name}"), progress)
        for side, run, name in (("before", start.run, "base"), ("after", record.run, "tuned"))
    }
    accuracy = {side: count_exact(given, expected) / len(expected) for side, given in answers.items()}
    lines = [
        text(
            "demo.example",
            prompt=prompts[i][-1]["content"],
            before=answers["before"][i].strip(),
            after=answers["after"][i].strip(),
        )
        for i in range(SHOWN)
    ]
    percent = {side: f"{100 * share:.0f}" for side, share in accuracy.items()}
    lines.append(text("demo.result.grpo", count=len(expected), **percent))
    found = {f"accuracy_{side}": share for side, share in accuracy.items()}
    return record, {**found, "held_out": len(expected)}, lines


def make_start(desk: Desk) -> Recipe:
    """Return the recipe of a few steps of fine-tuning, its rows written."""
    rows = [{"messages": list(row)} for row in read_rows()]
    changes = {
        "name": "beginning",
        "data.source": write_rows(desk, ROWS[0], rows),
        "adapter.rank": 16,
        "adapter.alpha": 32.0,
        "optim.learning_rate": 1e-3,
        "optim.max_steps": START_STEPS,
        "optim.schedule": "constant",
        "optim.warmup_share": 0.0,
        "run.samples": 0,
    }
    return change_recipe(desk.recipes.demo(), changes)


def make_trying(desk: Desk, start: RunRecord) -> Recipe:
    """Return the recipe that goes on from `start` by a reward for exact answers, its questions written."""

    def ask(rows: list[tuple[dict[str, str], dict[str, str]]]) -> list[dict[str, Any]]:
        return [{"prompt": [asked], "answer": answer["content"]} for asked, answer in rows]

    changes = {
        "name": "grpo",
        "objective": "grpo",
        "model.adapter": str(desk.workspace.runs / start.run / start.artifact),
        "data.source": write_rows(desk, ROWS[1], ask(read_rows())),
        "data.validation": write_rows(
            desk, ROWS[2], ask(read_rows(HELD_OUT)[: len(read_rows(HELD_OUT)) // 2])
        ),
        "data.format": "rl",
        "rewards": (RewardSpec(name="exact", options={"to_the_letter": True}),),
        "sampling.group_size": 8,
        "sampling.answer_tokens": ANSWER_TOKENS,
        "adapter.rank": 16,
        "adapter.alpha": 32.0,
        "optim.learning_rate": 5e-4,
        "optim.max_steps": 30,
        "optim.schedule": "constant",
        "optim.warmup_share": 0.0,
        "run.eval_every": 10,
        "run.scored_rows": 60,
        "run.samples": 0,
    }
    return change_recipe(desk.recipes.demo(), changes)
