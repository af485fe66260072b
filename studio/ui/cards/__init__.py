"""What several screens tell: notes, facts, problems, plans, machines, runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from studio.core.errors import Problem
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.services.recipe_problems import SourceProblem
from studio.ui.templates import render

Say = Callable[..., str]


def note_card(words: str, kind: str = "quiet") -> Markup:
    """Return one sentence in a box; `kind` is quiet, good, warn or bad."""
    return render("cards/note.html", words=words, kind=kind, status=False)


def status_note(words: str, kind: str = "quiet") -> Markup:
    """Return one sentence in a box, which a screen reader says."""
    return render("cards/note.html", words=words, kind=kind, status=True)


def heading(words: str, lead: str = "", level: int = 2) -> Markup:
    """Return the heading of a screen or of a part of it, with what it is for."""
    return render("cards/heading.html", words=words, lead=lead, level=level)


def lead_line(words: str) -> Markup:
    """Return the sentence that says what a part of a screen is for."""
    return render("cards/line.html", words=words, kind="lead")


def soft_line(words: str) -> Markup:
    """Return a sentence that stays in the background."""
    return render("cards/line.html", words=words, kind="soft")


def facts_card(title: str, rows: Iterable[tuple[str, str]], notes: Sequence[str] = ()) -> Markup:
    """Return a card of names and values, with sentences below."""
    return render("cards/facts.html", title=title, rows=rows, notes=notes)


def model_name(model: ModelFacts, say: Say) -> str:
    """Return what a model is called here."""
    return say("ui.model.demo") if model.source == "demo" else model.name


def machine_words(machine: MachineFacts, say: Say) -> str:
    """Return the machine in one short line, for the header."""
    ram = f"{machine.ram_bytes / 2**30:.0f} GiB"
    if not machine.gpus:
        return say("ui.machine.cpu", cores=machine.cores, ram=ram)
    gpu = machine.gpus[0]
    name = f"{len(machine.gpus)} × {gpu.name}" if len(machine.gpus) > 1 else gpu.name
    return say("ui.machine.gpu", name=name, memory=f"{gpu.vram_bytes / 2**30:.0f} GiB")


def fix_of(problem: Problem) -> Text:
    """Return what helps against a problem, in the window's words: a question about the data is answered on its tab."""
    return text("ui.check.answer") if isinstance(problem, SourceProblem) and problem.asks else problem.fix


def problems_card(problems: Sequence[Problem], say: Say) -> Markup:
    """Return every problem with the field it belongs to; a sentence when there is none."""
    if not problems:
        return note_card(say("ui.check.fine"), "good")
    labels = {knob.path: say(knob.label) for knob in knobs_of(Recipe)}
    found = [
        {
            "severity": problem.severity,
            "field": labels.get(problem.field, problem.field),
            "message": problem.message,
            "fix": fix_of(problem),
        }
        for problem in sorted(problems, key=lambda one: one.severity)
    ]
    errors = sum(problem.severity == "error" for problem in problems)
    title = say("ui.check.errors", count=errors) if errors else say("ui.check.warnings", count=len(problems))
    return render("cards/problems.html", say, problems=found, title=title, kind="bad" if errors else "warn")


def plan_card(plan: BackendPlan | None, swaps: Sequence[Text], say: Say) -> Markup:
    """Return every choice of the plan with its reason."""
    names = ("device", "dtype", "attention", "quantization", "optimizer", "checkpointing")
    rows = [(say(f"ui.plan.{name}"), getattr(plan, name)) for name in names] if plan else []
    rows += plan.kernels.items() if plan else []
    return render(
        "cards/plan.html",
        say,
        plan=plan,
        rows=[(name, _choice_words(choice.value, say), choice.reason) for name, choice in rows],
        swaps=swaps,
    )


def _choice_words(value: Any, say: Say) -> str:
    if isinstance(value, bool):
        return say("ui.yes" if value else "ui.no")
    return say("ui.no") if value in (None, "none", "") else str(value)


def run_label(record: RunRecord, say: Say) -> str:
    """Return a run's name in a picker: when, what, how it stands."""
    when = time.strftime("%m-%d %H:%M", time.localtime(record.created_s))
    name = record.name or record.base or record.run
    return f"{when} · {name} · {say(f'ui.state.{record.state}')}"
