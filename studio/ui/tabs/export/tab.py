"""The Export tab: write a run's result in the forms that other programs take, and keep an eye on what was written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.services.chat_service import say_place
from studio.services.exports import TARGETS, describe
from studio.ui.cards import heading, run_label
from studio.ui.context import Context
from studio.ui.quantities import size_words
from studio.ui.shell.html_events import make_escape, make_voice, read_said
from studio.ui.tabs.export.cards import (
    error_card,
    items_card,
    result_card,
    stopped_card,
    target_cards,
    working_card,
)
from studio.ui.tabs.export.hub_card import STOP, HubCard

LOOK_EVERY_S = 0.3
NOTHING = [gr.skip()] * 3
"""A handler that yields nothing at all would empty what it could have changed."""
RUN_OF_ADDRESS = (
    "(run, seen) => { const one = window.studio.takeRun();"
    " return [run, one ? `!${one}` : new URLSearchParams(location.search).get('run') || '', seen]; }"
)


def name_state(choice: Any, place: Any) -> str:
    """Return how the picker names a state of a run."""
    return f"{choice.record.run}@{place.name}" if place.name else choice.record.run


def part_state(state: str, target: str) -> tuple[str, str, str]:
    """Return run, target and place of a state that name_state() named."""
    run, _, place = state.partition("@")
    return run, target, place


class ExportTab:
    """Components and handlers. An export belongs to the desk: a page that comes back sees it again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Column(elem_classes=["sheet"], elem_id="export-head"):
            gr.HTML(heading(say("ui.export.title"), say("ui.export.lead")))
            self.run = gr.Dropdown(
                choices=[],
                label=say("ui.export.run"),
                elem_id="export-run",
                filterable=False,
                interactive=True,
            )
            self.targets = gr.HTML("", elem_id="export-targets")
            self.result = gr.HTML("", elem_id="export-result")
            self.hub = HubCard(context)
            self.voice = make_voice("#tab-export", "export-said")
            self.takeaway = make_escape("#tab-export", "export-takeaway")
            self.wanted = gr.Textbox(visible=False)
        with gr.Column(elem_classes=["sheet"], elem_id="export-list"):
            gr.HTML(heading(say("ui.export.list"), level=3))
            self.items = gr.HTML("", elem_id="export-items")

    def bind(self, tab: gr.Tab) -> None:
        """Bind every handler; opening the tab looks for runs and for an export that is on."""
        on = self.context.on
        seen = gr.State(False)
        shown = [self.targets, self.result, self.items]
        on(
            tab.select,
            self.enter,
            [self.run, self.wanted, seen],
            [self.run, self.targets, self.items, seen],
            js=RUN_OF_ADDRESS,
        )
        on(tab.select, self.watch, [self.run], shown)
        on(tab.select, self.hub.watch, [self.run], [self.hub.card])
        on(self.run.input, self.show_targets, [self.run], [self.targets])
        on(self.run.input, self.hub.show, [self.run], [self.hub.card])
        on(self.voice.said, self.hear, [self.voice, self.run], shown, trigger_mode="multiple")
        heard = on(
            self.voice.said, self.hub.hear, [self.voice, self.run], [self.hub.card], trigger_mode="multiple"
        )
        on(heard.then, self.list_items, [], [self.items])  # what is sent is exported first

    def enter(self, run: str | None, wanted: str, seen: bool) -> list[Any]:
        """Return the picker, the forms and the list of a page that opens this tab.

        The run of the page's address goes first (one marked by ! always), then the one chosen before, then the newest.
        """
        names = self._list_states()
        known = [value for _, value in names]
        sent, wanted = wanted.startswith("!"), wanted.removeprefix("!")
        newest = next((state for state in known if state.partition("@")[0] == wanted), None)
        first = newest if newest and (sent or not seen) else run
        chosen = first if first in known else (known[0] if known else None)
        return [
            gr.update(choices=names, value=chosen),
            self.show_targets(chosen),
            self.list_items(),
            True,
        ]

    def _list_states(self) -> list[tuple[str, str]]:
        """Return every state of a run that can be exported, newest run first: (what it is called, RUN or RUN@PLACE)."""
        desk, say = self.context.desk, self.context.say
        active = desk.runs.active
        return [
            (
                f"{run_label(choice.record, say)} · {say(say_place(place.name, place.step))}",
                name_state(choice, place),
            )
            for choice in desk.chat.choices(desk.runs.list())
            for place in choice.places
            if place.problem is None and choice.record.run != active
        ]

    def show_targets(self, run: str | None) -> str:
        """Return the forms with what each takes of this state of a run."""
        desk, say = self.context.desk, self.context.say
        busy = desk.exports.job is not None and not desk.exports.job.ended
        active = desk.runs.active
        waits = say("export.waits", run=active) if active else ""
        if not run:
            return target_cards(
                [describe(target) for target in TARGETS], say, busy=True, waits=say("ui.export.no_run")
            )
        try:
            estimates = [desk.exports.estimate(*part_state(run, target)) for target in TARGETS]
        except StudioError as error:  # the base is gone, the record is damaged
            estimates, waits = [describe(target) for target in TARGETS], self.context.say_error(error)
        return target_cards(estimates, say, busy=busy, waits=waits, run=run)

    def hear(self, said: object, run: str | None) -> Iterator[list[Any]]:
        """Do what a button in a card says."""
        do, value, _ = read_said(said)
        exports, say = self.context.desk.exports, self.context.say
        if do == "export":
            if not run:
                raise StudioError(
                    text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix")
                )
            exports.start(*part_state(run, value))
            yield from self.watch(run)
        elif do == "stop" and value != STOP and exports.job is not None:
            exports.job.stop()
            yield NOTHING
        elif do == "go_on":
            kept = next((one for one in exports.list_kept() if one.name == value), None)
            if kept is None:
                raise StudioError(text("export.gone"), text("export.gone.why"), text("export.gone.fix"))
            exports.start(kept.run, kept.target, kept.place)
            yield from self.watch(run)
        elif do == "discard":
            freed_bytes = exports.discard(value)
            gr.Info(say("ui.chat.freed", size=size_words(freed_bytes)), duration=4)
            yield [self.show_targets(run), "", self.list_items()]
        elif do == "delete":
            freed_bytes = exports.delete(value)
            gr.Info(say("ui.chat.freed", size=size_words(freed_bytes)), duration=4)
            gone = exports.job is not None and exports.job.ended and exports.job_target == value
            yield [self.show_targets(run), "" if gone else gr.skip(), self.list_items()]
        else:
            if do == "open" and self._is_local():
                exports.open_folder(value)
            yield NOTHING

    def watch(self, run: str | None) -> Iterator[list[Any]]:
        """Yield how the export goes that is on, until it ends, then what it wrote; nothing when there was none."""
        exports, say = self.context.desk.exports, self.context.say
        job = exports.job
        if job is None:
            yield NOTHING
            return
        told, local = None, self._is_local()  # who asks is known at the first step alone
        if not job.ended:
            yield [self.show_targets(run), gr.skip(), self._list(local)]
        while not job.ended:
            now = (job.phase, exports.written_bytes() if job.phase else 0, job.total, job.stopping)
            if now != told:
                told = now
                phase = say(job.phase) if job.phase is not None else say("ui.chat.waiting")
                card = working_card(phase, now[1], job.total, say, stopping=job.stopping)
                yield [gr.skip(), card, gr.skip()]
            time.sleep(LOOK_EVERY_S)
        yield [self.show_targets(run), self._show_end(job, exports.job_target, local), self._list(local)]

    def _show_end(self, job: Any, name: str, local: bool) -> str:
        say = self.context.say
        if job.error is None:
            try:
                return result_card(self.context.desk.exports.find(name), say, local=local)
            except StudioError:  # deleted since
                return ""
        if type(job.error).__name__ == "ExportStopped":
            kept = {one.name for one in self.context.desk.exports.list_kept()}
            return stopped_card(say, kept=name in kept)
        return error_card(self.context.say_error(job.error))

    def list_items(self) -> str:
        """Return what was exported, for the page that asks."""
        return self._list(self._is_local())

    def _list(self, local: bool) -> str:
        exports = self.context.desk.exports
        return items_card(exports.items(), self.context.say, local=local, kept=exports.list_kept())

    def _is_local(self) -> bool:
        """Return whether the page that asks is on this machine: nobody else is served by its file manager."""
        outside = {connection.id for connection in self.context.desk.sharing.view().connections}
        return self.context.owner_asks and self.context.caller not in outside
