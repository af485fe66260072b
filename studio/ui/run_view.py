"""The HTML of a run: what is to be done about it, its log, its sample answers, its frozen settings.

Pure, every value escaped; the Training tab and what guests see are made of the same parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from html import escape

from studio.core.codec import to_json
from studio.core.errors import Problem
from studio.core.events import Diagnosis, RunStalled, SampleWritten
from studio.core.facts import Slower
from studio.core.i18n import Catalogue, Text, text
from studio.core.knobs import knobs_of
from studio.core.recipe import Recipe, read_value
from studio.core.run_record import RunRecord
from studio.planning.slow_paths import say_slower
from studio.services.recipe_problems import SourceProblem
from studio.ui.cards import fix_of, time_words
from studio.ui.field_badges import elem_id, show_plainly, tab_of
from studio.ui.live import LiveView
from studio.ui.run_advice import RunVerdict
from studio.ui.status_view import worked_s

Say = Callable[..., str]
MARKS = {"good": "✓", "info": "i", "warn": "!", "bad": "✕"}


def place_of(field: str) -> tuple[str, str]:
    """Return the tab and the element id of a setting's field."""
    return tab_of(field), elem_id(field)


def place_of_problem(problem: Problem) -> tuple[str, str]:
    """Return the tab and the element id of what settles a problem: a question about the data is answered below it."""
    if isinstance(problem, SourceProblem) and problem.asks:
        return "dataset", "dataset-questions"
    return place_of(problem.field)


def field_button(place: tuple[str, str], words: str) -> str:
    """Return the button that opens a place's tab and marks what is there."""
    tab, id = place
    return (
        f'<button type="button" class="say" data-go="{tab}" data-mark="{escape(id)}">{escape(words)}</button>'
    )


def way_buttons(problem: Problem, say: Say) -> str:
    """Return a button for each change that helps: it says {do: "way", value: the change as JSON}."""
    buttons = "".join(
        f'<button type="button" class="say" data-do="way" '
        f'data-value="{escape(json.dumps(dict(way.change), sort_keys=True))}">{escape(say(way.title))}</button>'
        for way in problem.ways
    )
    return f'<div class="answers">{buttons}</div>' if buttons else ""


def slower_card(slower: Sequence[Slower], say: Say) -> str:
    """Return what makes a run slower than it could be, costliest first; "" where nothing does."""
    items = "".join(f"<p>{escape(say(say_slower(one)))}</p>" for one in slower)
    title = escape(say("ui.slower.title"))
    return (
        f'<div class="card problems warn run-slower" role="status"><h3>{title}</h3>{items}</div>'
        if items
        else ""
    )


def check_card(problems: Sequence[Problem], recipe: Recipe, say: Say) -> str:
    """Return what the check found, each problem with a way to its field, and what happens first after Start."""
    labels = {knob.path: say(knob.label) for knob in knobs_of(Recipe)}
    errors = sum(problem.severity == "error" for problem in problems)
    items = []
    for problem in sorted(problems, key=lambda one: one.severity):
        field = labels.get(problem.field, problem.field)
        place = place_of_problem(problem)
        asks = place != place_of(problem.field)
        words = say("ui.check.answer.show") if asks else say("ui.check.show", field=field)
        button = field_button(place, words) if field else ""
        mark = MARKS["bad" if problem.severity == "error" else "warn"]
        items.append(
            f'<li class="{escape(problem.severity)}"><i aria-hidden="true">{mark}</i><div>'
            f"<b>{escape(field)}</b> {escape(say(problem.message))} "
            f"<em>{escape(say(fix_of(problem)))}</em>{way_buttons(problem, say)}</div>{button}</li>"
        )
    if errors:
        title, kind = say("ui.check.errors", count=errors), "bad"
    elif problems:
        title, kind = say("ui.check.warnings", count=len(problems)), "warn"
    else:
        title, kind = say("ui.check.fine"), "good"
    trial = "ui.check.trial" if recipe.run.trial else "ui.check.no_trial"
    listed = f'<ul class="found">{"".join(items)}</ul>' if items else ""
    return (
        f'<div class="card check problems {kind}" data-errors="{errors}"><h3>{escape(title)}</h3>{listed}'
        f'<p class="soft">{escape(say(trial))}</p></div>'
    )


def controls(state: str, active: bool, resumable: bool, say: Say) -> str:
    """Return the buttons of the run on show: what can be done with it as it stands; "" when nothing can.

    `active` says whether this window trains it, `resumable` whether it may go on.
    """
    parts = []
    if active:
        paused = state == "paused"
        parts.append(("run-pause", "unpause" if paused else "pause", "primary" if paused else "", ""))
        parts.append(("run-stop", "stop", "", ""))
        parts.append(("run-discard", "discard", "danger", say("ui.run.discard.ask")))
    elif resumable:
        parts.append(("run-resume", "resume", "primary", ""))
    buttons = "".join(
        f'<button type="button" class="say {kind}" id="{id}" data-do="{do}" data-focus="{id}"'
        + (f' data-confirm="{escape(question)}"' if question else "")
        + f">{escape(say(f'ui.run.{do}'))}</button>"
        for id, do, kind, question in parts
    )
    return f'<div class="controls">{buttons}</div>' if buttons else ""


def stall_card(stall: RunStalled | None, say: Say) -> str:
    """Return what stands still, why and where as far as it can be told, and what to choose from; "" while it moves."""
    if stall is None:
        return ""
    words = say(stall.message)
    told = not stall.frame or stall.frame in words  # the verdict `blocked` names the place itself
    where = "" if told else f"<p><code>{escape(say('ui.stall.where', frame=stall.frame))}</code></p>"
    answers = ""
    if stall.action == "ask":
        answers = "".join(
            f'<button type="button" class="say" id="run-answer-{name}" data-do="answer" data-value="{name}">'
            f"{escape(say(f'ui.stall.{name}'))}</button>"
            for name in ("wait", "restart", "stop")
        )
    return (
        f'<div class="card problems warn" role="alert" data-verdict="{escape(stall.verdict)}">'
        f"<h3>{escape(say('ui.stall.title', step=stall.step))}</h3><p>{escape(words)}</p>{where}"
        f'<div class="answers">{answers}</div></div>'
    )


def failure_card(diagnosis: Diagnosis | None, say: Say, fixable: bool = True) -> str:
    """Return what ended a run, why, and what helps; fixes that change a setting are buttons. "" without a failure.

    A button says {do: "fix", value: number of the fix}; `fixable` False leaves the buttons out, as for guests.
    """
    if diagnosis is None:
        return ""
    buttons, words = [], []
    for number, fix in enumerate(diagnosis.fixes or ()):
        if fix.title is None:
            continue
        if fix.change and fixable:
            kind = "" if buttons else "primary"
            label = escape(say("ui.run.apply", fix=fix.title))
            buttons.append(
                f'<button type="button" class="say {kind}" id="run-fix-{number + 1}" data-do="fix" '
                f'data-value="{number}">{label}</button>'
            )
        else:
            words.append(f"<li>{escape(say(fix.title))}</li>")
    listed = f"<ul>{''.join(words)}</ul>" if words else ""
    what = diagnosis.what or text("failure.unknown")
    why = f"<p>{escape(say(diagnosis.why))}</p>" if diagnosis.why else ""
    return (
        f'<div class="card problems bad failure" role="alert"><h3>{escape(say(what))}</h3>{why}{listed}'
        f'<div class="answers">{"".join(buttons)}</div></div>'
    )


def verdict_cards(verdicts: Sequence[RunVerdict], say: Say, show_fields: bool = True) -> str:
    """Return what is to be said of a run, each with what to do about it."""
    cards = []
    for one in verdicts:
        shown = show_fields and one.field
        button = field_button(place_of(one.field), say("ui.run.change")) if shown else ""
        cards.append(
            f'<div class="verdict {one.level}" data-verdict="{escape(one.id)}">'
            f'<i aria-hidden="true">{MARKS[one.level]}</i>'
            f"<p><b>{escape(say(one.what))}</b> {escape(say(one.advice))}</p>{button}</div>"
        )
    return f'<div class="verdicts">{"".join(cards)}</div>' if cards else ""


def done_card(record: RunRecord, view: LiveView, say: Say, *, former: bool = False) -> str:
    """Return what comes after a finished run: talk to it, take it away.

    `former`: the form is about another run by now, whose Start is the page's one prominent button.
    """
    run, took = record.run, worked_s(view, "finished", record, view.updated_s)
    if former:
        words = escape(say("ui.done.former"))
        return f'<div class="card run-done former"><p>{words}</p>{_ways_on(run, say, first="")}</div>'
    words = say("ui.done.words", steps=view.step, took=time_words(took))
    return (
        f'<div class="card problems good run-done"><h3>{escape(say("ui.done.title"))}</h3><p>{escape(words)}</p>'
        f"{_ways_on(run, say)}</div>"
    )


def stopped_card(run: str, say: Say) -> str:
    """Return what can be done with the newest checkpoint of a run that did not come to its end."""
    words = escape(say("ui.done.checkpoint"))
    return f'<div class="card run-done"><p>{words}</p>{_ways_on(run, say)}</div>'


def _ways_on(run: str, say: Say, first: str = "primary") -> str:
    choice = f' data-run-choice="{escape(run)}"'
    steps = "".join(
        f'<button type="button" class="say {kind}" data-go="{tab}"{taken}>'
        f"{escape(say(f'ui.done.{tab}'))}</button>"
        for tab, kind, taken in (("chat", first, choice), ("export", "", choice), ("runs", "", ""))
    )
    return f'<div class="answers">{steps}</div>'


def samples_card(
    samples: Sequence[SampleWritten], chosen: int | None, say: Say, *, held_out: bool = True
) -> str:
    """Return the answers of one evaluation beside those of the base, with a picker; `chosen` None is the newest.

    held_out: whether their prompts are of rows that are not trained on.
    """
    title = escape(say("ui.samples.title"))
    steps = sorted({sample.step for sample in samples})
    if not steps:
        return f'<div class="card samples"><h3>{title}</h3><p class="soft">{escape(say("ui.samples.none"))}</p></div>'
    at = chosen if chosen in steps else steps[-1]
    options = "".join(
        f'<option value="{step}"{" selected" if step == at else ""}>'
        f"{escape(say('ui.samples.step', step=step) if step else say('ui.samples.before'))}</option>"
        for step in reversed(steps)
    )
    names = {name: escape(say(f"ui.samples.{name}")) for name in ("prompt", "base", "now", "expected")}
    rows = []
    # A run that went on from an earlier step wrote some of them twice: the later ones count.
    for sample in {one.prompt: one for one in samples if one.step == at}.values():
        same, judged = sample.answer.strip() == sample.expected.strip(), at > 0 and sample.expected
        kind = ("hit" if same else "other") if judged else ""
        mark = (
            f' <span class="{kind}">{"✓" if same else "✗"} {escape(say(f"ui.samples.{kind}"))}</span>'
            if kind
            else ""
        )
        parts = [("base", sample.base, "", "")]
        parts += [("now", sample.answer, f" {kind}", mark)] if at > 0 else []
        parts += [("expected", sample.expected, "", "")]
        cells = "".join(
            f'<div class="said-{name}{more}"><dt>{names[name]}{sign}</dt><dd>{escape(words) or "–"}</dd></div>'
            for name, words, more, sign in parts
        )
        rows.append(f'<li><p class="asked">{escape(sample.prompt)}</p><dl>{cells}</dl></li>')
    note = "" if held_out else f'<p class="soft">{escape(say("ui.samples.trained"))}</p>'
    return (
        f'<div class="card samples" data-step="{at}"><div class="head"><h3>{title}</h3>'
        f'<select data-pick="sample" data-focus="samples" aria-label="{escape(say("ui.samples.pick"))}">'
        f'{options}</select></div>{note}<ul tabindex="0">{"".join(rows)}</ul></div>'
    )


def log_card(view: LiveView, say: Callable[[Text], str] | Say) -> str:
    """Return the log's last lines, oldest first."""
    if not view.log:
        return f'<div class="log soft">{escape(say("ui.log.empty"))}</div>'
    lines = "".join(
        f'<p class="{line.level}"><time>{time.strftime("%H:%M:%S", time.localtime(line.time_s))}</time>'
        f"{escape(say(line.message))}</p>"
        for line in view.log
    )
    return f'<div class="log" tabindex="0"><div>{lines}</div></div>'


def page_top(say: Say) -> str:
    """Return the places of a run's parts above its charts; assets/run.js fills them."""
    parts = "".join(
        f'<div class="part" id="run-{name}"></div>' for name in ("slower", "stall", "failure", "verdicts")
    )
    none = f'<div class="card note quiet"><p>{escape(say("ui.run.none"))}</p></div>'
    return (
        '<div class="run-page"><div class="part" id="run-pick"></div>'
        f'<div class="part" id="run-status">{none}</div>'
        '<div class="part" id="run-controls"></div><div class="part" id="run-note"></div>'
        f'{parts}<p class="spoken" id="run-spoken" role="status" aria-live="polite"></p></div>'
    )


def page_bottom(say: Say) -> str:
    """Return the places of a run's parts below its charts."""
    options = "".join(
        f'<option value="{level}">{escape(say(f"ui.log.level.{level}"))}</option>'
        for level in ("all", "warn", "bad")
    )
    return (
        '<div class="run-page pair"><div class="part" id="run-samples"></div><div id="run-log-box">'
        f'<div class="log-tools"><h3>{escape(say("ui.log.title"))}</h3>'
        f'<label><span>{escape(say("ui.log.level"))}</span><select data-level="log">{options}</select></label>'
        '<button type="button" class="say" id="run-log-download" '
        f'data-failed="{escape(say("ui.log.failed"))}">{escape(say("ui.log.download"))}</button></div>'
        '<div class="part" id="run-log"></div></div>'
        '<div class="part" id="run-settings"></div><div class="part" id="run-plan"></div></div>'
    )


def settings_card(recipe: Recipe, words: Catalogue) -> str:
    """Return the settings of a run as they were when it started: those that are not the default, and all as JSON."""
    say = words.say
    defaults = Recipe(model=type(recipe.model)(source=""), data=type(recipe.data)(source=""))
    rows = []
    for knob in knobs_of(Recipe):
        value = read_value(recipe, knob.path)
        if knob.path != "name" and value != read_value(defaults, knob.path):
            rows.append(
                f"<dt>{escape(say(knob.label))}</dt><dd>{escape(show_plainly(knob, value, words))}</dd>"
            )
    whole = json.dumps(to_json(recipe), ensure_ascii=False, indent=1)
    return (
        f'<div class="card settings"><h3>{escape(say(text("ui.frozen.title")))}</h3>'
        f'<p class="soft">{escape(say(text("ui.frozen.lead", count=len(rows))))}</p><dl>{"".join(rows)}</dl>'
        f"<details><summary>{escape(say(text('ui.frozen.json')))}</summary>"
        f'<pre tabindex="0">{escape(whole)}</pre></details></div>'
    )


def fold_card(title: str, inside: str) -> str:
    """Return a card that is folded up; `inside` is HTML made here."""
    return f'<details class="fold"><summary>{escape(title)}</summary>{inside}</details>'
