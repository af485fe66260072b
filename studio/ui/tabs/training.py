"""The Training tab: start, watch, stop and save, resume; what is shown lives on the server, so every tab agrees."""

from __future__ import annotations

from typing import Any

import gradio as gr

from studio.core.errors import RecipeError, StudioError
from studio.core.recipe import change_recipe
from studio.core.text import text
from studio.ui.cards import (
    chip,
    failure_card,
    log_card,
    note_card,
    plan_card,
    problems_card,
    run_label,
    stall_card,
    status_card,
)
from studio.ui.chart import make_charts
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.live import LiveView, payload

FIXES = 3
NOTHING = {
    "run": "",
    "generation": -1,
    "cursor": 0,
    "seq": -1,
    "active": None,
    "state": "",
    "plan": -1,
    "log": 0.0,
}
"""What a page shows before its first look at the server."""
ANSWERS = ("wait", "restart", "stop")
RESUMABLE = ("stopped", "failed", "interrupted", "waiting")


class TrainingTab:
    """Components and handlers; `watched` holds what this page shows, so that a tick sends only what is new."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        say = context.say
        with gr.Row(elem_classes=["toolbar"]):
            size = {"size": "md", "scale": 0, "min_width": 170}
            off = {"interactive": False}
            self.start = gr.Button(say("ui.run.start"), elem_id="run-start", variant="primary", **size)
            self.stop = gr.Button(say("ui.run.stop"), elem_id="run-stop", variant="stop", **size, **off)
            self.resume = gr.Button(say("ui.run.resume"), elem_id="run-resume", **size, **off)
            self.pick = gr.Dropdown(
                choices=[], label=say("ui.run.pick"), elem_id="run-select", filterable=False, interactive=True
            )
        self.problems = gr.HTML("", elem_id="run-problems")
        self.status = gr.HTML(note_card(say("ui.run.none")), elem_id="run-status")
        self.stall = gr.HTML("", elem_id="run-stall")
        with gr.Row(elem_id="run-answers"):
            self.answers = [
                gr.Button(say(f"ui.stall.{name}"), visible=False, elem_id=f"run-answer-{name}", size="sm")
                for name in ANSWERS
            ]
        self.failure = gr.HTML("", elem_id="run-failure")
        with gr.Row(elem_id="run-fixes"):
            self.fixes = [
                gr.Button("", visible=False, elem_id=f"run-fix-{i + 1}", size="sm") for i in range(FIXES)
            ]
        self.charts = make_charts(say, "run-charts")
        with gr.Row():
            with gr.Column(scale=5, min_width=380):
                self.log = gr.HTML(log_card(LiveView(), say), elem_id="run-log")
            with gr.Column(scale=5, min_width=380):
                self.plan = gr.HTML(plan_card(None, (), say), elem_id="run-plan")

    def make_shared(self) -> None:
        """Make what must live outside the tabs: a hidden tab's timer and state would not run."""
        self.timer = gr.Timer(1.0)
        self.watched = gr.State(NOTHING)

    def bind(self, header: gr.HTML) -> None:
        """Connect buttons and timer; `header` is the run's chip at the top of the window."""
        on = self.context.on
        inputs = list(self.form.components.values())
        self.shown = [
            self.watched, self.charts, self.status, self.failure, self.log, self.plan,
            self.start, self.stop, self.resume, self.pick, header, *self.fixes, self.stall, *self.answers,
        ]  # fmt: skip
        look = [self.watched, self.status]
        on(self.timer.tick, self.tick, look, self.shown)
        on(self.charts.replay, self.replay, [self.watched], [self.charts, self.watched])
        started = on(self.start.click, self.begin, [self.watched, *inputs], [self.problems, self.watched])
        on(started.then, self.tick, look, self.shown)
        for button, work in ((self.stop, self.halt), (self.resume, self.go_on)):
            done = on(button.click, work, [self.watched], [self.problems])
            on(done.then, self.tick, look, self.shown)
        for button, name in zip(self.answers, ANSWERS, strict=True):
            done = on(button.click, self._answerer(name), [self.watched], [self.problems])
            on(done.then, self.tick, look, self.shown)
        chosen = on(self.pick.input, self.choose, [self.watched, self.pick], [self.watched, self.problems])
        on(chosen.then, self.tick, look, self.shown)
        for i, button in enumerate(self.fixes):
            applied = on(button.click, self._applier(i), [self.watched], [self.problems, self.watched])
            on(applied.then, self.tick, look, self.shown)

    def begin(self, watched: dict, *values: Any) -> tuple[str, dict]:
        """Check the form and start the run, or show every problem."""
        say = self.context.say
        try:
            recipe = self.form.read(values)
            problems = self.context.desk.check(recipe)
            if any(problem.severity == "error" for problem in problems):
                return problems_card(problems, say), watched
            run = self.context.desk.start(recipe, checked=True)
        except RecipeError as error:
            return problems_card(error.problems, say), watched
        warnings = problems_card(problems, say) if problems else ""
        return warnings, NOTHING | {"run": run, "active": run}

    def halt(self, watched: dict) -> str:
        """Ask the active run to stop and save; the step at hand ends first."""
        active = self.context.desk.active_run()
        if active is None:
            return note_card(self.context.say("ui.run.not_running"), "warn")
        self.context.desk.stop(active)
        return note_card(self.context.say("ui.run.stopping"))

    def _answerer(self, name: str):
        def answer(watched: dict) -> str:
            """Tell the watchdog what the person wants done about a run that stands still."""
            taken = self.context.desk.answer_stall(watched["run"], name)
            return note_card(self.context.say("ui.stall.answered" if taken else "ui.stall.gone"))

        return answer

    def go_on(self, watched: dict) -> str:
        """Resume the run on show from its last checkpoint."""
        if not watched["run"]:
            raise StudioError(
                text("ui.run.no_choice"), text("ui.run.no_choice.why"), text("ui.run.no_choice.fix")
            )
        self.context.desk.resume(watched["run"])
        return ""

    def _applier(self, position: int):
        def apply(watched: dict) -> tuple[str, dict]:
            """Start the failed run anew with the change that a fix names."""
            view = self.context.view(watched["run"])
            changes = [fix.change for fix in view.diagnosis.fixes if fix.change] if view.diagnosis else []
            if position >= len(changes):
                return "", watched
            recipe = change_recipe(self.context.desk.recipe(watched["run"]), dict(changes[position]))
            run = self.context.desk.start(recipe)
            return "", NOTHING | {"run": run, "active": run}

        return apply

    def choose(self, watched: dict, run: str) -> tuple[dict, str]:
        """Show another run."""
        return NOTHING | {"run": run or "", "active": watched["active"]}, ""

    def replay(self, watched: dict) -> tuple[Any, dict]:
        """Send a chart that begins anew all rows of its run."""
        run = watched["run"] or self._newest()
        if not run:
            return gr.skip(), watched
        message = payload(run, self.context.view(run), {})
        cursor = {"run": run, "generation": message["generation"], "cursor": message["until"]}
        return message, watched | cursor

    def tick(self, watched: dict, card: str = "") -> list[Any]:
        """Return what is new since this page's last look; nothing at all when nothing is.

        Two ticks of a page can be at work at once (the timer's, and the one after a button), and their answers may
        reach the page in the other order. So `card`, what the page really shows as the run's status, is looked at too.
        """
        active = self.context.desk.active_run()
        run = watched["run"]
        if active and active != watched["active"]:
            run = active
        run = run or self._newest()
        if not run:
            return [gr.skip()] * len(self.shown)
        view = self.context.view(run)
        state = view.state
        if run == active or (state == "running" and self.context.desk.run(run).state == "running"):
            state = "running"  # here, or from a command line in the same workspace
        elif state == "running":
            state = "interrupted"
        overtaken = bool(card) and state == watched["state"] and f'data-state="{state}"' not in card
        fresh = run != watched["run"] or watched["seq"] < 0 or overtaken
        if not fresh and (view.seq, state, active) == (watched["seq"], watched["state"], watched["active"]):
            return [gr.skip()] * len(self.shown) if state != "running" else self._only_status(view, state)
        message = payload(run, view, watched)
        seen = watched | {
            "run": run,
            "seq": view.seq,
            "state": state,
            "active": active,
            "plan": view.plan_seq,
            "log": view.log[-1].time_s if view.log else 0.0,
        }
        if message:
            seen |= {"generation": message["generation"], "cursor": message["until"]}
        planned = fresh or view.plan_seq != watched["plan"]
        turned = fresh or state != watched["state"] or active != watched["active"]
        return [
            seen,
            message or gr.skip(),
            status_card(view, state, self.context.say),
            failure_card(view.diagnosis, self.context.say) if turned else gr.skip(),
            log_card(view, self.context.say) if fresh or seen["log"] != watched["log"] else gr.skip(),
            plan_card(view.plan, view.swaps, self.context.say) if planned else gr.skip(),
            gr.update(interactive=active is None),
            gr.update(interactive=active is not None),
            gr.update(interactive=active is None and state in RESUMABLE),
            self._choices(run) if turned else gr.skip(),
            chip(view, state, self.context.say),
            *(self._fix_buttons(view, state) if turned else [gr.skip()] * FIXES),
            *self._stall_parts(view, state),
        ]

    def _stall_parts(self, view: LiveView, state: str) -> list[Any]:
        """The box of a run that stands still, and its buttons where the person is asked."""
        stall = view.stall if state == "running" else None
        asked = stall is not None and stall.action == "ask"
        return [stall_card(stall, self.context.say), *[gr.update(visible=asked)] * len(ANSWERS)]

    def _only_status(self, view: LiveView, state: str) -> list[Any]:
        """Between two steps only the clock moves."""
        answer = [gr.skip()] * len(self.shown)
        answer[self.shown.index(self.status)] = status_card(view, state, self.context.say)
        return answer

    def _fix_buttons(self, view: LiveView, state: str) -> list[Any]:
        fixes = (
            [fix for fix in view.diagnosis.fixes if fix.change]
            if view.diagnosis and state == "failed"
            else []
        )
        names = [self.context.say("ui.run.apply", fix=fix.title) for fix in fixes[:FIXES]]
        return [gr.update(value=name, visible=True) for name in names] + [gr.update(visible=False)] * (
            FIXES - len(names)
        )

    def _newest(self) -> str:
        records = self.context.desk.runs()
        return records[0].run if records else ""

    def _choices(self, run: str) -> dict:
        names = [(run_label(record, self.context.say), record.run) for record in self.context.desk.runs()]
        return gr.update(choices=names, value=run if run in [value for _, value in names] else None)
