"""What the Runs tab tells: the table with its curves, what can be done with one run, what differs between several."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.events import name_metric
from studio.core.i18n import Catalogue, Text, text
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.planning.slow_paths import say_slower, say_times
from studio.ui.field_badges import show_plainly
from studio.ui.quantities import size_words, time_words
from studio.ui.templates import render

Say = Callable[..., str]
HASH_SHOWN = 12
CHUNK = 100
"""Rows that are drawn at once: a browser takes some 40 ms for them."""
WIDTH, HEIGHT = 120, 30
KNOBS = {knob.path: knob for knob in knobs_of(Recipe)}
PLAN_KNOBS = {
    "device": "run.device",
    "dtype": "model.precision",
    "attention": "model.attention",
    "quantization": "model.quantization",
    "optimizer": "optim.optimizer",
}
"""Part of a plan -> the setting whose choices name its values."""
KERNELS = {"reference": "PyTorch", "triton": "Triton"}
LETTERS = "ABCDE"
"""What compared runs are called, here and in the chart (script.js)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """What is open below one row: `kind` is actions, rename or again; `differs` only for the last."""

    run: str = ""
    kind: str = "actions"
    differs: tuple[Text, ...] = ()


def sparkline(losses: Sequence[float], say: Say) -> dict[str, Any]:
    """Return a small curve of the losses with the last one in words; below two values the words alone."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if len(known) < 2:
        return {"label": say("ui.runs.curve.none"), "line": ""}
    low, high = min(known), max(known)
    room = (high - low) or 1.0
    points = [
        (2 + i * (WIDTH - 6) / (len(known) - 1), 3 + (high - loss) / room * (HEIGHT - 6))
        for i, loss in enumerate(known)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    return {
        "label": say("ui.runs.curve", loss=f"{known[-1]:.3g}"),
        "line": line,
        "area": f"M{points[0][0]:.1f},{HEIGHT} L{line.replace(' ', ' L')} L{x:.1f},{HEIGHT} Z",
        "x": f"{x:.1f}",
        "y": f"{y:.1f}",
        "width": WIDTH,
        "height": HEIGHT,
    }


def run_name(record: RunRecord) -> str:
    """Return what a run is called."""
    return record.name or record.base or record.run


def source_name(source: str, say: Say) -> str:
    """Return a model or data set in short: of a path the last part, a hub id as it is."""
    if source == "demo":
        return say("ui.runs.demo")
    path = source.startswith((".", "~", "/")) or "\\" in source or source.count("/") > 1
    return (
        [part for part in re.split(r"[\\/]", source) if part][-1] if path and source.strip("\\/") else source
    )


def model_of(entry: Any, say: Say) -> str:
    """Return the base model of a shelf's entry."""
    return source_name(entry.recipe.model.source if entry.recipe else entry.record.base, say) or "–"


def data_of(entry: Any, say: Say) -> str:
    """Return the data set of a shelf's entry."""
    return source_name(entry.recipe.data.source, say) if entry.recipe else "–"


def when(created_s: float) -> str:
    """Return the local date and time, of today the time alone."""
    then = time.localtime(created_s)
    today = time.strftime("%Y%m%d", then) == time.strftime("%Y%m%d")
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def matches(entry: Any, words: str, say: Say) -> bool:
    """Return whether every word of `words` stands in the run's name, id, state, model or data."""
    state = say(f"ui.runs.state.{entry.record.state}")
    parts = (run_name(entry.record), entry.record.run, state, model_of(entry, say), data_of(entry, say))
    text = "\n".join(parts).casefold()
    return all(word in text for word in words.casefold().split())


def describe(entry: Any, say: Say) -> dict[str, Any]:
    """Return what lists of runs tell of one, in words."""
    record = entry.record
    total = f" / {record.total_steps}" if record.total_steps and record.steps != record.total_steps else ""
    return {
        "run": record.run,
        "name": run_name(record),
        "when": when(record.created_s),
        "state": record.state,
        "state_words": say(f"ui.runs.state.{record.state}"),
        "slower": say(say_times(record.slower)) if record.slower else "",
        "slower_reasons": " ".join(say(say_slower(one)) for one in record.slower),
        "curve": sparkline(entry.spark, say),
        "loss": "–" if record.loss is None else f"{record.loss:.3f}",
        "eval_loss": _number(entry.best_eval_loss)
        if entry.best_eval_reward is None
        else say("ui.runs.eval_reward", reward=_number(entry.best_eval_reward)),
        "score": show_score(record, say),
        "score_hint": hint_score(record, say),
        "model": model_of(entry, say),
        "data": data_of(entry, say),
        "steps": f"{record.steps}{total}",
        "time": time_words(entry.took_s) if entry.took_s else "–",
        "size": size_words(entry.size_bytes),
    }


def show_score(record: RunRecord, say: Say) -> str:
    """Return the held-out score of a run's result, its base's in front of an arrow: `12 → 91 %`."""
    if not record.scores:
        return "–"
    return _say_score(record, record.scores[0].metric)


def hint_score(record: RunRecord, say: Say) -> str:
    """Return what a held-out score is of, and between which bounds it lies; "" without one."""
    if not record.scores:
        return ""
    score = record.scores[0]
    low, high = (f"{100 * part:.0f}" for part in (score.low, score.high))
    return say("ui.runs.score", metric=say(f"metric.{score.metric}"), rows=score.rows, low=low, high=high)


def _say_score(record: RunRecord, metric: str) -> str:
    for score in record.scores:
        if score.metric == metric:
            before = "" if score.base is None else f"{100 * score.base:.0f} → "
            return f"{before}{100 * score.value:.0f} %"
    return "–"


def runs_table(
    entries: Sequence[Any],
    say: Say,
    *,
    total: int,
    shown: int = CHUNK,
    words: str = "",
    panel: Panel,
    active: str,
) -> str:
    """Return the table of the first `shown` of `entries` (those that match `words`, of `total` runs in all).

    `active` is the run that is on, "" without one. One button at the end asks for the next CHUNK rows.
    """
    opened = next((entry for entry in entries[:shown] if entry.record.run == panel.run), None)
    return render(
        "tabs/runs/table.html",
        say,
        rows=[describe(entry, say) | {"opened": entry is opened} for entry in entries[:shown]],
        panel=_describe_panel(opened, panel, say, active) if opened else None,
        found=len(entries),
        total=total,
        words=words,
        more=min(max(0, len(entries) - shown), CHUNK),
    )


def _describe_panel(entry: Any, panel: Panel, say: Say, active: str) -> dict[str, Any]:
    """What the row below a run's own says of it and offers."""
    record, on = entry.record, entry.record.run == active
    notes = [] if entry.answers else [say("ui.runs.result.none")]
    if entry.resumable.ok and active and not on:
        notes.append(say("ui.runs.resume.busy"))
    elif not entry.resumable.ok and not on and record.state != "finished":
        reason = say(entry.resumable.reason or "ui.runs.resume.unknown")
        notes.append(say("ui.runs.resume.not", reason=reason))
    if on:
        notes.append(say("ui.runs.delete.active"))
    return {
        "kind": panel.kind,
        "run": record.run,
        "name": run_name(record),
        "size": size_words(entry.size_bytes),
        "differs": panel.differs,
        "busy": bool(active),
        "on": on,
        "answers": entry.answers,
        "resumable": entry.resumable.ok and not active,
        "recipe": entry.recipe is not None,
        "notes": [*notes, *(say(say_slower(one)) for one in record.slower)],
    }


# Several runs ---------------------------------------------------------------------------------------------------------


def comparison_card(entries: Sequence[Any], comparison: Any, words: Catalogue) -> str:
    """Return results, settings and surroundings of 2 to 5 runs side by side; of the latter two what differs alone."""

    def say(id: str) -> str:
        return words.say(text(id))

    records = [entry.record for entry in entries]
    metrics = dict.fromkeys(name for record in records for name in record.metrics)
    results = [
        (say("ui.runs.column.state"), [say(f"ui.runs.state.{one.state}") for one in records]),
        (say("ui.runs.column.loss"), [_number(one.loss) for one in records]),
        (say("ui.runs.column.eval_loss"), [_number(entry.best_eval_loss) for entry in entries]),
        *(
            [(say("ui.runs.column.eval_reward"), [_number(entry.best_eval_reward) for entry in entries])]
            if any(entry.best_eval_reward is not None for entry in entries)
            else []
        ),
        *(
            (say(f"metric.{name}"), [_say_score(one, name) for one in records])
            for name in dict.fromkeys(score.metric for one in records for score in one.scores)
        ),
        *(
            (words.say(name_metric(name)), [_number(one.metrics.get(name)) for one in records])
            for name in metrics
        ),
        (say("ui.runs.column.steps"), [str(one.steps) for one in records]),
        (say("ui.runs.column.time"), [time_words(entry.took_s) for entry in entries]),
    ]
    settings = [_setting(path, values, words) for path, values in comparison.settings]
    surroundings = [_surrounding(name, values, words) for name, values in comparison.environment]
    return render(
        "tabs/runs/comparison.html",
        say,
        tables=[
            ("ui.runs.compare.results", results),
            ("ui.runs.compare.settings", settings),
            ("ui.runs.compare.environment", surroundings),
        ],
        names=list(zip(LETTERS, map(run_name, records), strict=False)),
    )


def _setting(path: str, values: Sequence[Any], words: Catalogue) -> tuple[str, list[str]]:
    """Return a row in words; a run whose recipe cannot be read has no values."""
    knob = KNOBS[path]
    return words.say(knob.label), ["–" if one is None else show_plainly(knob, one, words) for one in values]


def _surrounding(name: str, values: Sequence[Any], words: Catalogue) -> tuple[str, list[str]]:
    """Return a row in words; of a hash what tells two apart."""
    kind, _, part = name.partition(".")
    if kind == "package":
        return part, [str(value or "–") for value in values]
    if part.startswith("kernels."):
        title = text("ui.runs.surroundings.kernel", name=part.removeprefix("kernels."))
        return words.say(title), [KERNELS.get(str(value), str(value or "–")) for value in values]
    if kind == "plan":
        knob = KNOBS[PLAN_KNOBS[part]]
        shown = [show_plainly(knob, value, words) if value else "–" for value in values]
        return words.say(text(f"ui.plan.{part}")), shown
    cut = HASH_SHOWN if name.endswith("_hash") else None
    return words.say(text(f"ui.runs.surroundings.{name}")), [str(value or "–")[:cut] for value in values]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
