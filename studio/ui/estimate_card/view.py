"""What the card beside the four tabs of a run tells: what is set, whether it fits, how long, what is in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from studio.core.errors import Problem
from studio.data.pipeline import UNTRAINED
from studio.planning.run_time import say_duration
from studio.services.estimate import RunEstimate
from studio.services.model_fit import METHODS
from studio.ui.cards import fix_of, model_name
from studio.ui.field_badges import tab_of
from studio.ui.quantities import count_words, size_words, time_words
from studio.ui.tabs.model.cards import SIGNS
from studio.ui.tabs.training.cards import place_of_problem
from studio.ui.templates import render

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


def run_card(estimate: RunEstimate, problems: Sequence[Problem] | None, say: Say) -> Markup:
    """Return the whole card. `problems`: those found, None while they are looked for."""
    return render(
        "estimate_card/card.html",
        say,
        estimate=estimate,
        done=" ".join(list_done(estimate, problems)),
        memory=memory_bar(estimate, say),
        checks=checks_list(problems, say),
        model=_model(estimate, say),
        data=_data(estimate, say),
        method=_method(estimate, say),
        dtype=estimate.plan.dtype.value if estimate.plan else "",
        time_reason=say(estimate.time_reason) if estimate.time_reason else "",
        time=_time(estimate, say),
        steps=say("ui.card.steps", steps=f"{estimate.steps:,}")
        if estimate.steps
        else say("ui.card.steps.unknown"),
        disk=_disk(estimate, say),
        download=_download(estimate, say),
        ways=list(zip(STEPS, STEPS[1:], strict=False)),
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


def memory_bar(estimate: RunEstimate, say: Say) -> Markup:
    """Return the predicted peak as a bar by part, with the line of what may be used, in words too."""
    verdict, needed, limit = estimate.verdict, estimate.needed_bytes, estimate.budget_bytes
    if verdict == "unknown" or not limit:
        return render("estimate_card/memory.html", say, verdict="unknown")
    whole = max(estimate.has_bytes, needed)
    sums = {group: sum(estimate.parts.get(name, 0) for name in names) for group, names in GROUPS.items()}
    parts = [(group, name) for group, names in GROUPS.items() for name in names if estimate.parts.get(name)]
    values = {"needed": _gib(needed), "limit": _gib(limit), "has": _gib(estimate.has_bytes)}
    return render(
        "estimate_card/memory.html",
        say,
        verdict=verdict,
        sign=SIGNS[verdict],
        words=say(f"ui.card.memory.{verdict}", **values),
        segments=[(group, size / whole) for group, size in sums.items() if size],
        mark=min(1.0, limit / whole),
        parts=[(group, name, estimate.parts[name]) for group, name in parts],
        values=values,
        plan=estimate.plan,
    )


def checks_list(problems: Sequence[Problem] | None, say: Say) -> Markup:
    """Return what is in the way, each with a button to the tab of its field."""
    if problems is None:
        return render("estimate_card/checks.html", say, problems=None)
    errors = sum(problem.severity == "error" for problem in problems)
    kind = "bad" if errors else "warn" if problems else "good"
    title = say("ui.card.fine")
    if problems:
        id = "ui.card.errors" if errors else "ui.card.warnings"
        title = say(id, count=errors or len(problems))
    shown = [
        {
            "severity": problem.severity,
            "sign": "✕" if problem.severity == "error" else "!",
            "message": problem.message,
            "fix": fix_of(problem),
            "tab": tab_of(problem.field),
            "mark": place_of_problem(problem)[1] if problem.field else "",
        }
        for problem in problems[:PROBLEMS_SHOWN]
    ]
    return render(
        "estimate_card/checks.html",
        say,
        problems=shown,
        kind=kind,
        sign={"bad": "✕", "warn": "!", "good": "✓"}[kind],
        title=title,
        more=max(0, len(problems) - PROBLEMS_SHOWN),
    )


def _model(estimate: RunEstimate, say: Say) -> dict[str, Any]:
    """`name` of a model that is there, else the `source` that was named."""
    model, source = estimate.model, estimate.recipe.model.source
    if model is None:
        return {"name": "", "source": source.strip() and source}
    return {
        "name": model_name(model, say),
        "parameters": model.facts.parameters if model.facts else 0,
    }


def _data(estimate: RunEstimate, say: Say) -> dict[str, Any]:
    source = estimate.recipe.data.source.strip()
    name = say("ui.card.data.demo") if source == "demo" else source.replace("\\", "/").rpartition("/")[2]
    facts = [say("ui.card.rows", rows=f"{estimate.rows:,}")] if estimate.rows else []
    facts += [say("ui.card.tokens", tokens=count_words(estimate.tokens))] if estimate.tokens else []
    return {"source": source, "name": name or source, "facts": facts}


def _method(estimate: RunEstimate, say: Say) -> str:
    recipe, plan = estimate.recipe, estimate.plan
    if recipe.adapter.method == "full":
        return say("ui.card.full")
    held = plan.quantization.value if plan else recipe.model.quantization
    method = {quantization: method for method, quantization in METHODS.items()}.get(held, "qlora")
    wide = method == "lora" and plan is not None and plan.dtype.value == "fp32"
    name = say("fit.method.lora_wide" if wide else f"fit.method.{method}")
    return say("ui.card.rank", method=name, rank=recipe.adapter.rank)


def _time(estimate: RunEstimate, say: Say) -> str:
    """Return about how long it takes; "" where that is not known."""
    if estimate.total_s is None:
        return ""
    measured = bool(estimate.steps and estimate.step_s)
    time = time_words(estimate.total_s) if measured else say(say_duration(estimate.total_s))
    return say("ui.card.time.about", time=time)


def _disk(estimate: RunEstimate, say: Say) -> str:
    if not estimate.disk_bytes:
        return "–"
    values = {"size": size_words(estimate.disk_bytes), "free": size_words(estimate.free_disk_bytes)}
    return say("ui.card.disk.words", **values)


def _download(estimate: RunEstimate, say: Say) -> str:
    if not estimate.downloads:
        return say("ui.card.download.none")
    size = estimate.download_bytes
    return size_words(size) if size else say("ui.card.download.unknown")


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"
