"""The Training tab: check, start, watch, pause, stop, resume; what is shown lives on the server: every tab agrees."""

from __future__ import annotations

import time
from typing import Any

import gradio as gr
from markupsafe import Markup

from studio.core.errors import RecipeError, StudioError
from studio.core.i18n import text
from studio.core.json_file import parse_json
from studio.core.recipe import Recipe, change_recipe
from studio.ui.cards import note_card, problems_card, soft_line
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.training.cards import check_card
from studio.ui.tabs.training.charts import make_charts
from studio.ui.tabs.training.run_page import RunPage
from studio.ui.templates import render

ANSWERS = ("wait", "restart", "stop")
WAYS = ("data.max_rows", "data.max_length", "optim.epochs", "optim.max_steps")
"""Settings that a way out of the check may change (planning/run_time.py)."""
READY = "window.studioRun?.draw();"
"""A part that is mounted takes what the page knows already."""


def read_way(value: str) -> dict[str, Any]:
    """Return the change of the recipe that a button names. Raises StudioError for any other than a way out sets."""
    try:
        changes = parse_json(value)
        sound = (
            isinstance(changes, dict) and set(changes) <= set(WAYS) and all(map(_is_number, changes.values()))
        )
    except ValueError:
        sound = False
    if not sound:
        parts = ("ui.check.way.unknown", "ui.check.way.unknown.why", "ui.check.way.unknown.fix")
        raise StudioError(*(text(part) for part in parts))
    return changes


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class TrainingTab:
    """Components and handlers.

    The run itself is not drawn by events of Gradio: each second run.js asks RunPage.look what is new and puts
    it where it belongs. An event costs the page a search through all components for every output, 15 ms each.
    """

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        self.page = RunPage(context)
        say = context.say
        with gr.Row(elem_classes=["toolbar"], elem_id="run-bar"):
            size = {"size": "md", "scale": 0, "min_width": 170}
            self.start = gr.Button(say("ui.run.start"), elem_id="run-start", variant="primary", **size)
            self.enqueue = gr.Button(say("ui.run.queue"), elem_id="run-queue-add", **size)
            self.waits = gr.HTML(soft_line(say("ui.run.queue.why")), elem_id="run-queue-why")
        self.problems = gr.HTML(note_card(say("ui.run.checking")), elem_id="run-problems")
        gr.HTML("", html_template=render("tabs/training/top.html", say), js_on_load=READY, elem_id="run-top")
        self.charts = make_charts(say, "run-charts", fed_by_page=True)
        script = read_script("tabs/training/script.js")
        gr.HTML(
            "",
            html_template=render("tabs/training/bottom.html", say),
            js_on_load=script + READY,
            elem_id="run-bottom",
        )
        self.voice = make_voice("#tab-training", "run-said")

    def make_shared(self) -> None:
        """Make what must live outside the tabs: what a hidden tab holds does not run."""

        tell, write = self.context.guarded(self.page.look), self.context.guarded(self.page.log_text)

        def look(request: gr.Request, shown: dict) -> dict:
            return tell(request, shown)

        def log(request: gr.Request, run: str) -> str:
            return write(request, run)

        self.watched = gr.HTML(
            {},
            html_template="<i></i>",
            js_on_load=read_script("tabs/training/run.js"),
            server_functions=[look, log],
            elem_id="run-watched",
            elem_classes=["unseen"],
        )
        """The run on show: a handler of any tab sets it to show(run)."""

    def bind(self, tab: gr.Tab | None = None) -> None:
        """Connect the buttons; `tab` is the one that this is in."""
        on = self.context.on
        inputs = list(self.form.components.values())
        outputs = [self.problems, self.watched]
        # One after the other: the check of a tab that was just opened must not be answered after the button's words.
        in_turn = {"concurrency_id": "training-check", "concurrency_limit": 1}
        on(self.start.click, self.begin, inputs, outputs, **in_turn)
        on(self.enqueue.click, self.add_to_queue, inputs, outputs, **in_turn)
        said = [self.watched, self.problems, *(self.form.components[path] for path in self._ways())]
        on(self.voice.said, self.answer, [self.voice, self.watched], said, trigger_mode="multiple")
        if tab is not None:
            on(tab.select, self.examine, inputs, [self.problems], **in_turn)

    def examine(self, *values: Any) -> str:
        """Check the form before a run; nothing while one is on, whose settings are frozen."""
        if self.context.desk.runs.active:
            return ""
        try:
            recipe = self.form.read(values, self.context.draft().rewards)
            return check_card(self.context.desk.recipes.check(recipe), recipe, self.context.say)
        except RecipeError as error:
            return check_card(error.problems, self.context.draft(), self.context.say)

    def begin(self, *values: Any) -> tuple[str, Any]:
        """Check the form and start the run, or show every problem."""
        recipe, problems = self._check(values)
        if recipe is None:
            return problems, gr.skip()
        return problems, self.show(self.context.desk.queue.start(recipe, checked=True))

    def add_to_queue(self, *values: Any) -> tuple[str, Any]:
        """Check the form and let the run wait in the queue, or show every problem."""
        recipe, problems = self._check(values)
        if recipe is None:
            return problems, gr.skip()
        say = self.context.say
        item = self.context.desk.queue.add(recipe)
        queued = render("tabs/training/queued.html", say, name=item.name or item.id)
        return Markup(problems) + queued, self.show("")

    def _check(self, values: tuple) -> tuple[Recipe | None, str]:
        """The form's recipe, None when it has errors; and the card of what is to be said of it."""
        say = self.context.say
        try:
            recipe = self.form.read(values, self.context.draft().rewards)
        except RecipeError as error:
            return None, check_card(error.problems, self.context.draft(), say)
        problems = self.context.desk.recipes.check(recipe)
        if any(problem.severity == "error" for problem in problems):
            return None, check_card(problems, recipe, say)
        return recipe, problems_card(problems, say) if problems else ""

    def _ways(self) -> list[str]:
        """The settings among WAYS that have a field."""
        return [path for path in WAYS if path in self.form.components]

    def answer(self, said: object, watched: object) -> list[Any]:
        """Do what a card's button asks: a change of the form, or something with the run on show."""
        do, value, _ = read_said(said)
        paths = self._ways()
        if do != "way":
            return [self.hear(said, watched), gr.skip(), *(gr.skip() for _ in paths)]
        changes = read_way(value)
        recipe = self.context.edit(changes)
        card = check_card(self.context.desk.recipes.check(recipe), recipe, self.context.say)
        return [gr.skip(), card, *self.form.show_changes(changes, paths)]

    def hear(self, said: object, watched: object) -> dict:
        """Do what a button of the run's own cards asks; returns what the page shows, with a note on what happens."""
        do, value, _ = read_said(said)
        desk, say = self.context.desk, self.context.say
        run = str(watched.get("run") or "") if isinstance(watched, dict) else ""
        if do == "stop":
            stopped = self.stop(run)
            return self.show(
                run, self._tell("stopping") if stopped else note_card(say("ui.run.not_running"), "warn")
            )
        if do == "pause":
            desk.runs.pause(run)
            return self.show(run, self._tell("pausing"))
        if do == "unpause":
            desk.runs.unpause(run)
            return self.show(run, self._tell("unpausing"))
        if do == "discard":
            desk.runs.discard(run)
            return self.show(run, self._tell("discarding"))
        if do == "resume":
            self.go_on(run)
        elif do == "answer" and value in ANSWERS:
            taken = desk.runs.answer_stall(run, value)
            return self.show(run, note_card(say("ui.stall.answered" if taken else "ui.stall.gone")))
        elif do == "fix":
            return self.show(self.apply_fix(run, value))
        return self.show(run)

    def _tell(self, doing: str) -> str:
        return note_card(self.context.say(f"ui.run.{doing}"))

    def stop(self, run: str) -> bool:
        """Ask `run` to stop and save; the step at hand ends first. False when it is not on: another one may be."""
        on = bool(run) and run == self.context.desk.runs.active
        if on:
            self.context.desk.runs.stop(run)
        return on

    def go_on(self, run: str) -> None:
        """Resume the run on show from its last checkpoint. Raises StudioError."""
        if not run:
            raise StudioError(
                text("ui.run.no_choice"), text("ui.run.no_choice.why"), text("ui.run.no_choice.fix")
            )
        self.context.desk.queue.resume(run)

    def apply_fix(self, run: str, number: str) -> str:
        """Start a failed run anew with the change that its fix `number` names; returns the run to show."""
        diagnosis = self.context.view(run).diagnosis if self.page.record(run) else None
        fixes = diagnosis.fixes if diagnosis else ()
        if not number.isdecimal() or int(number) >= len(fixes) or not fixes[int(number)].change:
            return run
        recipe = change_recipe(self.context.desk.runs.recipe(run), dict(fixes[int(number)].change))
        return self.context.desk.queue.start(recipe)

    def show(self, run: str, note: str = "") -> dict:
        """Return what `watched` must become for a page to show `run` ("" for the one that it shows); `note` is HTML."""
        return {"run": run, "note": note, "number": time.time()}
