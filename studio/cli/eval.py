"""`eval`: measures a run's model, its base, its checkpoints or any model of this machine on the rows of a file."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

from studio.cli import eval_tasks
from studio.cli.arguments import read_pairs
from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.metrics import METRICS
from studio.core.metrics.metric import AnswerMetric, MetricSettings
from studio.core.metrics.regex import compile_pattern
from studio.core.recipe import DatasetSpec
from studio.machine.workspace import Workspace

SHOWN_ROWS = 10


def evaluate(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    if options.tasks:
        return eval_tasks.evaluate(options, workspace, console)
    from studio.services.desk import Desk
    from studio.services.evaluation_file import require_writable, write_answers
    from studio.supervisor.restarts import stop_requests

    metrics, settings = read_metrics(options.metrics), read_settings(options)
    out = Path(options.out).absolute() if options.out else None
    if out is not None:
        require_writable(out)
    desk = Desk(workspace)
    desk.machine.hurry(lambda: True)  # kernels are proved by the first answer itself
    contenders = desk.evaluations.contenders(
        options.name, eval_tasks.split(options.beside), options.checkpoint
    )
    judge = _find_judge(options, desk, metrics)
    if judge is not None and metrics:
        metrics = tuple(dict.fromkeys((*metrics, *read_metrics("judge"))))
    questions = _read_questions(options, desk)

    from studio.services.evaluation_result import EvaluationWish

    wish = EvaluationWish(
        metrics=metrics,
        settings=settings,
        system=options.system,
        max_new_tokens=options.max_new_tokens,
        judge=judge,
    )
    with stop_requests() as asked:

        def should_stop() -> bool:
            if len(asked) > 1:
                raise KeyboardInterrupt  # at once: what was answered is kept
            return bool(asked)

        found = desk.evaluations.evaluate(
            questions, contenders, wish, tell=console.progress, should_stop=should_stop
        )
    if found.whole and out is not None:
        write_answers(out, found, console.catalogue)
    data = describe(found, options.name, out if found.whole else None)
    console.answer(data, _tell(data, found, console))
    return 0 if found.whole else 1


def read_metrics(words: str) -> tuple[AnswerMetric, ...]:
    """Return the metrics that are named, in their order; () for none. Raises StudioError."""
    known = {metric.name: metric for metric in METRICS}
    names = list(dict.fromkeys(eval_tasks.split(words)))
    for name in names:
        if name not in known:
            raise StudioError(
                text("eval.metric", name=name),
                text("eval.metric.why"),
                text("eval.metric.fix", known=list(known)),
            )
    return tuple(known[name] for name in names)


def read_settings(options: argparse.Namespace) -> MetricSettings:
    """Return what the options say of metrics. Raises StudioError for what is no regular expression."""
    if options.pattern and compile_pattern(options.pattern) is None:
        raise StudioError(
            text("eval.pattern", pattern=options.pattern[:80]),
            text("eval.pattern.why"),
            text("eval.pattern.fix"),
        )
    return MetricSettings(pattern=options.pattern, tolerance=options.tolerance)


def describe(found: Any, name: str, out: Path | None) -> dict[str, Any]:
    """Return the command's answer: every value with its bounds, what changed, and where the rows are."""
    asked = found.questions.asked
    sides = {
        side.contender.name: {
            "answered": len(side.answers),
            "cut": sum(answer.end == "limit" for answer in side.answers.values()),
            "refused": len(side.refused),
            "scores": {metric: _bounded(score) for metric, score in side.scores.items()},
        }
        for side in found.sides
    }
    against = {
        one.other: {
            metric: _bounded(difference)
            | (
                {"right_to_wrong": list(one.lost[metric]), "wrong_to_right": list(one.won[metric])}
                if metric in one.lost
                else {}
            )
            for metric, difference in one.differences.items()
        }
        for one in found.comparisons
    }
    return {
        "name": name,
        "state": "finished" if found.whole else "stopped",
        "data": found.questions.name,
        "rows": len(found.questions.rows),
        "asked": len(asked),
        "expected": sum(one.expected is not None for one in asked),
        "metrics": [metric.name for metric in found.metrics],
        "sides": sides,
        "against": against,
        "out": str(out) if out else None,
    }


def _bounded(score: Any) -> dict[str, Any]:
    found = {name: getattr(score, name) for name in ("value", "low", "high")}
    # JSON has no infinity: a perplexity beyond a double.
    return {name: value if math.isfinite(value) else None for name, value in found.items()} | {
        "rows": score.rows
    }


def _tell(data: dict[str, Any], found: Any, console: Console) -> list[str]:
    """Return the answer for a person: a line a metric with all models beside each other, then what changed."""
    say = console.catalogue.say
    lines = [say(text("eval.told", rows=data["asked"], name=data["data"], expected=data["expected"]))]
    left = data["rows"] - data["asked"]
    if left:
        lines.append(say(text("eval.left_out", rows=left)))
    if not data["expected"]:
        lines.append(say(text("eval.no_expected")))
    for metric in found.metrics:
        shown = [
            f"{name} {format_score(metric, score)}"
            for name, side in data["sides"].items()
            if (score := side["scores"].get(metric.name)) is not None
        ]
        label = say(text(f"metric.{metric.name}"))
        lines.append(f"{label}: " + ("   ".join(shown) if shown else say(text("eval.not_measured"))))
    for other, differences in data["against"].items():
        for metric, difference in differences.items():
            for which in ("right_to_wrong", "wrong_to_right"):
                rows = difference.get(which)
                if rows:
                    told = ", ".join(map(str, rows[:SHOWN_ROWS])) + (" …" if len(rows) > SHOWN_ROWS else "")
                    label = say(text(f"metric.{metric}"))
                    lines.append(
                        say(text(f"eval.{which}", metric=label, other=other, count=len(rows), rows=told))
                    )
    for name, side in data["sides"].items():
        if side["cut"]:
            lines.append(say(text("eval.cut", name=name, count=side["cut"])))
    if not found.whole:
        lines.append(say(text("eval.stopped")))
    elif data["out"]:
        lines.append(say(text("eval.written", path=data["out"])))
    return lines


def format_score(metric: AnswerMetric, score: dict[str, Any]) -> str:
    """Return `91.7 % [86.0, 96.0]`, or `1.83 [1.70, 2.01]`."""
    scale, digits, unit = (100, 1, " %") if metric.is_share else (1, 3, "")
    value, low, high = (
        "∞" if score[part] is None else f"{scale * score[part]:.{digits}f}"
        for part in ("value", "low", "high")
    )
    return f"{value}{unit} [{low}, {high}]"


def _read_questions(options: argparse.Namespace, desk: Any) -> Any:
    if not options.data:
        return desk.evaluations.held_out(options.name)
    from studio.data.questions import read_questions

    mapping = read_pairs(options.map, "cli.map")
    return read_questions(
        DatasetSpec(source=options.data, format=options.format, mapping=mapping, split=options.split)
    )


def _find_judge(options: argparse.Namespace, desk: Any, metrics: tuple[AnswerMetric, ...]) -> Any:
    wanted = any(metric.needs == "judge" for metric in metrics)
    if bool(options.judge) != bool(options.rubric) or (wanted and not options.judge):
        raise StudioError(text("eval.judge"), text("eval.judge.why"), text("eval.judge.fix"))
    if not options.judge:
        return None
    from studio.services.judges import AddressJudge, LocalJudge, read_rubric

    rubric = read_rubric(Path(options.rubric))
    if re.match(r"https?://", options.judge, re.I):
        from studio.hub.chat_client import ChatClient

        return AddressJudge(ChatClient(options.judge, options.judge_model), rubric)
    return LocalJudge(desk.chat, desk.evaluations.contenders(options.judge)[0], rubric)
