"""The Home tab: what this machine can do, what it lacks, three ways to start, what runs now and what ran last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.ui.cards import note_card
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.run_state import LiveView
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.home.cards import (
    Start,
    continue_start,
    last_runs,
    machine_card,
    missing_card,
    now_card,
    pick_continue,
    starts_card,
)
from studio.ui.tabs.training.tab import TrainingTab

GO = "(where) => { if (where) window.studio.go(...where.split(' ')); }"
"""Opens a tab, with a run where one is named, once the server has done what was asked."""


class HomeTab:
    """Components and handlers. What must be looked up comes after the page: the first picture waits for nothing."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.machine = gr.HTML(self._hero(None, None, 0), elem_id="home-machine")
        self.missing = gr.HTML('<p class="all-well">&nbsp;</p>', elem_id="home-missing")
        script = read_script("tabs/home/script.js")
        self.now = gr.HTML("", js_on_load=script, elem_id="home-now")
        self.starts = gr.HTML(self._starts(None, ""), elem_id="home-starts")
        self.runs = gr.HTML("", elem_id="home-runs")
        self.voice = make_voice("#tab-home", "home-said")
        self.go = gr.Textbox("", visible=False, elem_id="home-go")

    def bind(self, tab: gr.Tab, page_load: Callable, form: Form, training: TrainingTab) -> None:
        """Draw on page load and when the tab is opened; runs and machine apart, because the latter can take seconds."""
        on = self.context.on
        self.training = training
        drawn = [self.now, self.starts, self.runs]
        for event in (page_load, tab.select):
            on(event, self.draw, [], drawn)
            on(event, self.look, [], [self.machine, self.missing])
        on(self.now.refresh, self.draw, [], drawn)
        self.outputs = [self.go, training.watched, self.missing, *drawn]
        said = on(self.voice.said, self.hear, [self.voice], self.outputs, trigger_mode="multiple")
        said.success(None, [self.go], None, js=GO, api_visibility="private")

    def draw(self) -> list[str]:
        """Return the run that is on, the three starts and the last runs."""
        desk, say = self.context.desk, self.context.say
        entries, active = desk.library.entries(), desk.runs.active or ""
        on = next((entry for entry in entries if entry.record.run == active), None)
        waiting = sum(item.state == "waiting" for item in desk.queue.items())
        view = self.context.view(active) if on else LiveView()
        now = now_card(on, view, waiting, say)
        return [now, self._starts(pick_continue(entries, active), active), last_runs(entries, say)]

    def look(self) -> list[str]:
        """Return what this machine can do, and what it lacks."""
        desk = self.context.desk
        free_bytes = shutil.disk_usage(self.context.workspace.root).free
        hero = self._hero(desk.machine.facts(), desk.models.advice(), free_bytes)
        # Last, for what came before may take seconds, in which a fix is pressed.
        return [hero, self._missing(desk.machine.examine())]

    def hear(self, said: dict) -> Iterator[list[Any]]:
        """Do what a card's button asks. Yields what changes, first of all that it is being done."""
        do, value, _ = read_said(said)
        desk = self.context.desk
        if do == "demo":
            yield from self._start_demo()
        elif do == "resume":
            desk.queue.resume(value)
            yield self._show(value)
        elif do == "open":
            yield self._show(value)
        elif do == "chat":
            yield self._show(value, go=f"chat {value}")
        elif do == "fix":
            desk.machine.switch_repair(value, on=True)
            yield self._answer(missing=self._missing(desk.machine.examine(fresh=True)))
        elif do == "restart":
            if not desk.restart():
                parts = (
                    "ui.doctor.restart.alone",
                    "ui.doctor.restart.alone.why",
                    "ui.doctor.restart.alone.fix",
                )
                raise StudioError(*(text(part) for part in parts))
            yield self._answer(missing=self._restarting())
        else:  # a handler that yields nothing at all would empty what it could have changed
            yield self._answer()

    # Inside -------------------------------------------------------------------------------------------------------

    def _start_demo(self) -> Iterator[list[Any]]:
        """Start the demo's own recipe: what a person set in the form stays there. A busy machine lets it wait."""
        desk, active = self.context.desk, self.context.desk.runs.active or ""
        entry, recipe = pick_continue(desk.library.entries(), active), desk.recipes.demo()
        if active:
            desk.queue.add(recipe)
            yield self._answer(go="runs")
            return
        yield self._answer(starts=self._starts(entry, active, checking=True))
        try:
            run = desk.queue.start(recipe)
        except StudioError:
            yield self._answer(starts=self._starts(entry, active))
            raise
        yield self._show(run, starts=self._starts(entry, run))

    def _show(self, run: str, **changes: Any) -> list[Any]:
        return self._answer(**({"go": "training", "watched": self.training.show(run)} | changes))

    def _answer(self, **changes: Any) -> list[Any]:
        """The outputs of hear(): `changes` by name, the rest as it is. Nothing is opened unless `go` says so."""
        names = ("go", "watched", "missing", "now", "starts", "runs")
        changes = {"go": ""} | changes
        return [changes.get(name, gr.skip()) for name in names]

    def _hero(self, machine: Any, advice: Any, free_bytes: int) -> str:
        return machine_card(machine, advice, free_bytes, self.context.say, "descent")

    def _missing(self, report: dict) -> str:
        """What the machine lacks; once the studio starts anew, that: another drawing must not wipe it off."""
        desk = self.context.desk
        waits = desk.machine.restart_waits()  # takes a moment, in which the restart may be asked for
        if desk.restarting:
            return self._restarting()
        return missing_card(report["problems"], self.context.say, restart=waits)

    def _restarting(self) -> str:
        return note_card(self.context.say("ui.doctor.restarting"), "good")

    def _starts(self, entry: Any, active: str, *, checking: bool = False) -> str:
        """The three cards; `entry` is what the third is about, `active` the run that is on."""
        say, first = self.context.say, "ui.home.demo.queue" if active else "ui.home.demo.start"
        starts = (
            Start(
                name="demo", icon="demo", title=say("ui.home.demo"), words=say("ui.home.demo.lead"),
                button=say("ui.home.demo.checking" if checking else first), do="demo", primary=not active,
                busy=checking,
            ),
            Start(
                name="data", icon="data", title=say("ui.home.data"), words=say("ui.home.data.lead"),
                button=say("ui.home.data.start"), go="dataset",
            ),
            continue_start(entry, active, "continue", say),
        )  # fmt: skip
        return starts_card(starts, say)
