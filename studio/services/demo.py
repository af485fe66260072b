"""The bundled demo from start to end: train, let base and result answer the held-out prompts, count exact matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studio.core.i18n import LOCALES, Text, text
from studio.core.json_file import parse_json
from studio.core.metrics.exact import is_exact
from studio.core.run_record import RunRecord
from studio.services.desk import Desk

HELD_OUT = LOCALES.parent / "demo_data" / "heldout.jsonl"
SHOWN = 3
ANSWER_TOKENS = 96


def run_demo(
    desk: Desk,
    resume: str,
    follow: Callable[[str, int], RunRecord],
    progress: Callable[[Text, int, int], None],
) -> tuple[RunRecord, dict[str, Any], list[Text]]:
    """Train (or go on with run `resume`), measure; returns the record, the contract's extra keys and lines to show.

    `follow(run, after)` shows the events until the run's end. Raises StudioError.
    """
    run, after = resume, 0
    if resume:
        after = max((event.seq for event in desk.runs.events(resume)), default=0)
        if desk.runs.read(resume).state != "finished":
            desk.queue.resume(resume)
    else:
        run = desk.queue.start(desk.recipes.demo(), checked=True)
    record = follow(run, after)
    if record.state != "finished":
        return record, {"accuracy_before": None, "accuracy_after": None, "held_out": 0}, []
    prompts, expected = read_held_out()
    answers = {
        side: let_answer(desk, run, side, prompts, text(f"demo.measure.{side}"), progress)
        for side in ("base", "tuned")
    }
    accuracy = {side: count_exact(given, expected) / len(expected) for side, given in answers.items()}
    lines = [
        text(
            "demo.example",
            prompt=prompts[i][-1]["content"],
            before=answers["base"][i].strip(),
            after=answers["tuned"][i].strip(),
        )
        for i in range(SHOWN)
    ]
    percent = {side: f"{100 * share:.0f}" for side, share in accuracy.items()}
    lines.append(text("demo.result", before=percent["base"], after=percent["tuned"], count=len(expected)))
    return (
        record,
        {"accuracy_before": accuracy["base"], "accuracy_after": accuracy["tuned"], "held_out": len(expected)},
        lines,
    )


def let_answer(
    desk: Desk,
    run: str,
    side: str,
    prompts: list[list[dict[str, str]]],
    label: Text,
    progress: Callable[[Text, int, int], None],
) -> list[str]:
    """Return the greedy answers of `run` to the prompts, from its base or its result (`side`: base or tuned)."""
    return desk.chat.lend(
        run,
        "",
        None,
        lambda speaker, should_stop: speaker.answer_all(
            prompts,
            side,
            max_new_tokens=ANSWER_TOKENS,
            on_progress=lambda done, total: progress(label, done, total),
            should_stop=should_stop,
        ),
    )


def read_held_out() -> tuple[list[list[dict[str, str]]], list[str]]:
    """Return the held-out prompts (each without its answer) and the answers."""
    rows = [parse_json(line)["messages"] for line in HELD_OUT.read_text(encoding="utf-8").splitlines()]
    return [row[:-1] for row in rows], [row[-1]["content"] for row in rows]


def count_exact(answers: list[str], expected: list[str]) -> int:
    """Return how many answers are, but for white space around them, exactly the expected ones."""
    return sum(map(is_exact, answers, expected))
