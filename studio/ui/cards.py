"""The HTML of what the window tells: plans, problems, facts, every value escaped; sizes, counts and times in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from studio.core.errors import Problem
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.knobs import knobs_of
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.services.recipe_problems import SourceProblem

Say = Callable[..., str]


def size_words(size_bytes: float) -> str:
    """Return a size in the unit that fits: `14.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return ""


def count_words(count: int) -> str:
    """Return a large number in short: `7.5 M`, `8.0 B`."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return str(count)


def time_words(seconds: float) -> str:
    """Return a duration as m:ss or h:mm:ss; 0:00 for none (a clock that was set back, NaN)."""
    minutes, rest = divmod(int(seconds) if 0 <= seconds < 1e12 else 0, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def note_card(words: str, kind: str = "quiet") -> str:
    """Return one sentence in a box; `kind` is quiet, good, warn or bad."""
    return f'<div class="card note {kind}"><p>{escape(words)}</p></div>'


def facts_card(title: str, rows: Iterable[tuple[str, str]], note: str = "") -> str:
    """Return a card of names and values; `note` is HTML made here."""
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<div class="card"><h3>{escape(title)}</h3><dl>{body}</dl>{note}</div>'


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


def problems_card(problems: Sequence[Problem], say: Say) -> str:
    """Return every problem with the field it belongs to; a sentence when there is none."""
    if not problems:
        return note_card(say("ui.check.fine"), "good")
    labels = {knob.path: say(knob.label) for knob in knobs_of(Recipe)}
    items = []
    for problem in sorted(problems, key=lambda one: one.severity):
        field = labels.get(problem.field, problem.field)
        head = f"<b>{escape(field)}</b> " if field else ""
        items.append(
            f'<li class="{escape(problem.severity)}">{head}{escape(say(problem.message))} '
            f"<em>{escape(say(fix_of(problem)))}</em></li>"
        )
    errors = sum(problem.severity == "error" for problem in problems)
    title = say("ui.check.errors", count=errors) if errors else say("ui.check.warnings", count=len(problems))
    kind = "bad" if errors else "warn"
    return f'<div class="card problems {kind}"><h3>{escape(title)}</h3><ul>{"".join(items)}</ul></div>'


def plan_card(plan: BackendPlan | None, swaps: Sequence[Text], say: Say) -> str:
    """Return every choice of the plan with its reason."""
    title = escape(say("ui.plan.title"))
    if plan is None:
        return (
            f'<div class="card plan"><h3>{title}</h3><p class="soft">{escape(say("ui.plan.none"))}</p></div>'
        )
    names = ("device", "dtype", "attention", "quantization", "optimizer", "checkpointing")
    rows = [(say(f"ui.plan.{name}"), getattr(plan, name)) for name in names]
    rows += [(op, choice) for op, choice in plan.kernels.items()]
    body = "".join(
        f'<div class="choice"><span>{escape(name)}</span><b>{escape(_choice_words(choice.value, say))}</b>'
        f"<p>{escape(say(choice.reason))}</p></div>"
        for name, choice in rows
    )
    extra = "".join(f"<li>{escape(say(swap))}</li>" for swap in swaps)
    offers = "".join(
        f"<li><b>{escape(say(offer.title))}</b> {escape(say(offer.why))}</li>" for offer in plan.offers
    )
    lists = f"<ul>{extra}{offers}</ul>" if extra or offers else ""
    return f'<div class="card plan"><h3>{title}</h3>{body}{lists}</div>'


def _choice_words(value: Any, say: Say) -> str:
    if isinstance(value, bool):
        return say("ui.yes" if value else "ui.no")
    return say("ui.no") if value in (None, "none", "") else str(value)


def run_label(record: RunRecord, say: Say) -> str:
    """Return a run's name in a picker: when, what, how it stands."""
    when = time.strftime("%m-%d %H:%M", time.localtime(record.created_s))
    name = record.name or record.base or record.run
    return f"{when} · {name} · {say(f'ui.state.{record.state}')}"
