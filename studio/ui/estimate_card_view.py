"""The HTML of the card beside the four tabs of a run: what is set, whether it fits, how long, what is in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from studio.core.errors import Problem
from studio.core.i18n import text
from studio.data.pipeline import UNTRAINED
from studio.planning.run_time import say_duration
from studio.services.estimate import RunEstimate
from studio.services.model_fit import METHODS
from studio.ui.cards import count_words, fix_of, model_name, size_words, time_words
from studio.ui.field_badges import tab_of
from studio.ui.model_view import SIGNS
from studio.ui.run_view import place_of_problem

Say = Callable[..., str]
STEPS = ("model", "dataset", "hyperparameters", "training")
"""The tabs of a run, in order."""
GROUPS = {
    "weights": ("weights",),
    "training": ("adapters", "gradients", "optimizer"),
    "kept": ("activations",),
    "work": ("workspace", "dequantization", "loss"),
    "beside": ("fragmentation", "context"),
}
"""Segments of the memory bar -> the parts that each adds up (planning/memory_estimate.py)."""
PROBLEMS_SHOWN = 4


def run_card(estimate: RunEstimate, problems: Sequence[Problem] | None, say: Say) -> str:
    """Return the whole card. `problems`: those found, None while they are looked for."""
    rows = [
        ("model", _model(estimate, say)),
        ("data", _data(estimate, say)),
        ("method", _method(estimate, say)),
        ("time", _time(estimate, say)),
        ("disk", _disk(estimate, say)),
        ("download", _download(estimate, say)),
    ]
    body = "".join(
        f'<div data-part="{name}"><dt>{escape(say(f"ui.card.{name}"))}</dt><dd>{value}</dd></div>'
        for name, value in rows
    )
    done = " ".join(list_done(estimate, problems))
    return (
        f'<section class="run-card" data-done="{done}" aria-label="{escape(say("ui.card.title"))}">'
        f"<h2>{escape(say('ui.card.title'))}</h2><dl>{body}</dl>{memory_bar(estimate, say)}"
        f"{checks_list(problems, say)}{_next(say)}{_folds(estimate, say)}</section>"
    )


def list_done(estimate: RunEstimate, problems: Sequence[Problem] | None) -> list[str]:
    """Return which of STEPS are settled."""
    wrong = {tab_of(problem.field) for problem in problems or () if problem.severity == "error"}
    model, look = estimate.model, estimate.look
    seen = look.state in ("looking", "measuring", "done") and bool(look.report.get("format"))
    asked = look.error or look.report.get("needs_answer") or look.report.get("refusal")
    settled = {
        "model": model is not None
        and model.trainable
        and (model.facts is not None or model.origin == "hub")
        and estimate.verdict != "no",
        # Before it was looked at on its own screen the check of its head must do.
        "dataset": bool(estimate.recipe.data.source.strip())
        and problems is not None
        and (look.state == "none" or (seen and not asked and look.report["format"] not in UNTRAINED)),
        "hyperparameters": problems is not None,
        "training": estimate.has_finished_run,
    }
    return [name for name in STEPS if settled[name] and (name not in wrong or name == "training")]


def memory_bar(estimate: RunEstimate, say: Say) -> str:
    """Return the predicted peak as a bar by part, with the line of what may be used, in words too."""
    verdict, needed, limit = estimate.verdict, estimate.needed_bytes, estimate.budget_bytes
    title = escape(say("ui.card.memory"))
    if verdict == "unknown" or not limit:
        words = escape(say("ui.card.memory.unknown"))
        return f'<div class="memory" data-verdict="unknown"><h3>{title}</h3><p class="soft">{words}</p></div>'
    whole = max(estimate.has_bytes, needed)
    segments, parts = [], []
    for group, names in GROUPS.items():
        size = sum(estimate.parts.get(name, 0) for name in names)
        if size:
            segments.append(f'<i class="{group}" style="width:{size / whole:.2%}"></i>')
        parts += [
            f'<li><i class="{group}"></i><span>{escape(say(text(f"plan.part.{name}")))}</span>'
            f"<b>{size_words(estimate.parts[name])}</b></li>"
            for name in names
            if estimate.parts.get(name)
        ]
    values = {"needed": _gib(needed), "limit": _gib(limit), "has": _gib(estimate.has_bytes)}
    words = say(f"ui.card.memory.{verdict}", **values)
    return (
        f'<div class="memory" data-verdict="{verdict}"><h3>{title}<span class="fit {verdict}">'
        f'<i aria-hidden="true">{SIGNS[verdict]}</i> {escape(words)}</span></h3>'
        f'<div class="parts" role="img" aria-label="{escape(words)}">{"".join(segments)}'
        f'<u style="left:{min(1.0, limit / whole):.2%}"></u></div>'
        f'<details data-keep="parts"><summary>{escape(say("ui.card.memory.parts"))}</summary>'
        f'<ul>{"".join(parts)}</ul><p class="soft">{escape(say("ui.card.memory.limit", **values))}</p>'
        f"{_plan_words(estimate, say)}</details></div>"
    )


def _plan_words(estimate: RunEstimate, say: Say) -> str:
    """Why activations are kept or computed again: the planner's own sentence."""
    return f'<p class="soft">{escape(say(estimate.plan.checkpointing.reason))}</p>' if estimate.plan else ""


def checks_list(problems: Sequence[Problem] | None, say: Say) -> str:
    """Return what is in the way, each with a button to the tab of its field."""
    if problems is None:
        words = escape(say("ui.card.checking"))
        return f'<div class="checks-list waiting"><h3><i aria-hidden="true">…</i> {words}</h3></div>'
    errors = sum(problem.severity == "error" for problem in problems)
    kind = "bad" if errors else "warn" if problems else "good"
    title = say("ui.card.fine")
    if problems:
        id = "ui.card.errors" if errors else "ui.card.warnings"
        title = say(id, count=errors or len(problems))
    items = "".join(_problem(problem, say) for problem in problems[:PROBLEMS_SHOWN])
    more = len(problems) - PROBLEMS_SHOWN
    rest = f'<p class="soft">{escape(say("ui.card.more", count=more))}</p>' if more > 0 else ""
    sign = {"bad": "✕", "warn": "!", "good": "✓"}[kind]
    return (
        f'<div class="checks-list {kind}"><h3><i aria-hidden="true">{sign}</i> {escape(title)}</h3>'
        f"{f'<ul>{items}</ul>' if items else ''}{rest}</div>"
    )


def _problem(problem: Problem, say: Say) -> str:
    tab = tab_of(problem.field)
    mark = f' data-mark="{escape(place_of_problem(problem)[1])}"' if problem.field else ""
    sign = "✕" if problem.severity == "error" else "!"
    return (
        f'<li class="{problem.severity}"><i aria-hidden="true">{sign}</i><span>{escape(say(problem.message))} '
        f"<em>{escape(say(fix_of(problem)))}</em> "
        f'<button type="button" class="link" data-go="{tab}"{mark}>{escape(say(f"ui.tab.{tab}"))}</button></span></li>'
    )


def _model(estimate: RunEstimate, say: Say) -> str:
    model, source = estimate.model, estimate.recipe.model.source
    if model is None:
        if not source.strip():
            return _soft(say("ui.card.none"))
        return f'<span class="wrong">{escape(source)}</span>'
    name = model_name(model, say)
    count = model.facts.parameters if model.facts else 0
    extra = f" <small>{escape(count_words(count))}</small>" if count else ""
    return f"{escape(name)}{extra}"


def _data(estimate: RunEstimate, say: Say) -> str:
    source = estimate.recipe.data.source.strip()
    if not source:
        return _soft(say("ui.card.none"))
    name = say("ui.card.data.demo") if source == "demo" else source.replace("\\", "/").rpartition("/")[2]
    facts = [say("ui.card.rows", rows=f"{estimate.rows:,}")] if estimate.rows else []
    facts += [say("ui.card.tokens", tokens=count_words(estimate.tokens))] if estimate.tokens else []
    extra = f" <small>{escape(' · '.join(facts))}</small>" if facts else ""
    return f'<span title="{escape(source)}">{escape(name or source)}</span>{extra}'


def _method(estimate: RunEstimate, say: Say) -> str:
    recipe, plan = estimate.recipe, estimate.plan
    dtype = f" <small>{escape(plan.dtype.value)}</small>" if plan else ""
    if recipe.adapter.method == "full":
        return escape(say("ui.card.full")) + dtype
    held = plan.quantization.value if plan else recipe.model.quantization
    method = {quantization: method for method, quantization in METHODS.items()}.get(held, "qlora")
    wide = method == "lora" and plan is not None and plan.dtype.value == "fp32"
    name = say("fit.method.lora_wide" if wide else f"fit.method.{method}")
    return escape(say("ui.card.rank", method=name, rank=recipe.adapter.rank)) + dtype


def _time(estimate: RunEstimate, say: Say) -> str:
    steps = (
        say("ui.card.steps", steps=f"{estimate.steps:,}") if estimate.steps else say("ui.card.steps.unknown")
    )
    if estimate.total_s is None:
        return f"{escape(steps)}<small>{escape(say('ui.card.time.unknown'))}</small>"
    measured = bool(estimate.steps and estimate.step_s)
    time = time_words(estimate.total_s) if measured else say(say_duration(estimate.total_s))
    about, why = say("ui.card.time.about", time=time), say(estimate.time_reason)
    return f'<span title="{escape(why)}">{escape(about)}</span> <small>{escape(steps)}</small>'


def _disk(estimate: RunEstimate, say: Say) -> str:
    if not estimate.disk_bytes:
        return "–"
    values = {"size": size_words(estimate.disk_bytes), "free": size_words(estimate.free_disk_bytes)}
    return escape(say("ui.card.disk.words", **values))


def _download(estimate: RunEstimate, say: Say) -> str:
    if not estimate.downloads:
        return escape(say("ui.card.download.none"))
    size = estimate.download_bytes
    return escape(size_words(size) if size else say("ui.card.download.unknown"))


def _next(say: Say) -> str:
    """One button for each tab but the last; the style sheet shows that of the open tab."""
    buttons = "".join(
        f'<button type="button" class="say primary" data-from="{here}" data-go="{there}">'
        f"{escape(say('ui.card.next', tab=say(f'ui.tab.{there}')))}</button>"
        for here, there in zip(STEPS, STEPS[1:], strict=False)
    )
    return f'<div id="run-card-next">{buttons}</div>'


def _folds(estimate: RunEstimate, say: Say) -> str:
    copy = f'data-copied="{escape(say("ui.card.copied"))}">{escape(say("ui.card.copy"))}'
    save = f'data-name="recipe.json">{escape(say("ui.card.download.recipe"))}'
    return (
        f'<details class="take" data-keep="recipe"><summary>{escape(say("ui.card.recipe"))}</summary>'
        f'<pre id="run-card-recipe" tabindex="0">{escape(estimate.recipe_json)}</pre><div class="answers">'
        f'<button type="button" class="say" data-copy-from="run-card-recipe" {copy}</button>'
        f'<button type="button" class="say" data-save-from="run-card-recipe" {save}</button>'
        f'</div></details><details class="take" data-keep="command"><summary>{escape(say("ui.card.command"))}</summary>'
        f'<pre id="run-card-command" tabindex="0">{escape(estimate.command)}</pre>'
        f'<p class="soft">{escape(say("ui.card.command.note"))}</p><div class="answers">'
        f'<button type="button" class="say" data-copy-from="run-card-command" {copy}</button></div></details>'
    )


def _soft(words: str) -> str:
    return f'<span class="soft">{escape(words)}</span>'


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"
