"""The Doctor tab: what works on this computer, what does not and why, and what to do about it."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.machine.failures.explanation import explain_words
from studio.machine.redact import redact
from studio.ui.cards import heading, note_card
from studio.ui.context import Context
from studio.ui.tabs.doctor.report import cause_card, report_card

FIXES = 4
MOST_CHARACTERS = 320_000
"""Of a pasted text; of a longer one its beginning and its end are read, as `explain` does."""
COPY = "async (words) => !words ? 'waiting' : (await window.studio.copy(words)) ? 'copied' : 'refused'"
COPIED = {"waiting": "quiet", "copied": "good", "refused": "bad"}
"""What came of copying -> how its note looks."""


class DoctorTab:
    """Components and handlers. Nothing is probed before the tab is opened."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        small = {"size": "sm", "scale": 0, "min_width": 170}
        with gr.Column(elem_classes=["sheet"]):
            gr.HTML(heading(say("ui.doctor.title"), say("ui.doctor.lead")))
            with gr.Row(elem_classes=["toolbar"]):
                self.again = gr.Button(
                    say("ui.doctor.again"), elem_id="doctor-again", variant="primary", **small
                )
                self.network = gr.Button(say("ui.doctor.network"), elem_id="doctor-network", **small)
                self.copy = gr.Button(say("ui.doctor.copy"), elem_id="doctor-copy", **small)
            self.report = gr.HTML(note_card(say("ui.doctor.waiting")), elem_id="doctor-report")
            with gr.Row(elem_id="doctor-fixes"):
                self.fixes = [
                    gr.Button("", visible=False, elem_id=f"doctor-fix-{i + 1}", size="sm")
                    for i in range(FIXES)
                ]
            with gr.Row(elem_classes=["toolbar"]):
                self.repairs = gr.CheckboxGroup(
                    choices=[],
                    visible=False,
                    label=say("ui.doctor.repairs"),
                    info=say("ui.doctor.repairs.help"),
                    elem_id="doctor-repairs",
                    scale=1,
                )
                self.restart = gr.Button(
                    say("ui.doctor.restart"), visible=False, elem_id="doctor-restart", **small
                )
                self.bridge = gr.Button(say("ui.doctor.wsl"), visible=False, elem_id="doctor-wsl", **small)
                self.consent = gr.Button(
                    say("ui.doctor.wsl.yes"),
                    visible=False,
                    elem_id="doctor-wsl-yes",
                    variant="primary",
                    **small,
                )
            with gr.Column(elem_id="doctor-asked"):
                gr.HTML(heading(say("ui.doctor.error"), level=3))
                self.error = gr.Textbox(
                    label=say("ui.doctor.error.label"),
                    info=say("ui.doctor.error.help"),
                    lines=6,
                    max_lines=16,
                    elem_id="doctor-error",
                )
                with gr.Row(elem_classes=["toolbar"]):
                    self.explain = gr.Button(
                        say("ui.doctor.error.explain"), elem_id="doctor-explain", variant="primary", **small
                    )
                self.cause = gr.HTML("", elem_id="doctor-cause")
            self.note = gr.HTML("", elem_id="doctor-note")
            self.words = gr.Textbox(visible=False, elem_id="doctor-words")
        self.offered = gr.State([])
        """Names of the repairs that the buttons stand for, in their order."""

    def bind(self, tab: gr.Tab) -> None:
        """Examine when the tab opens and on the buttons."""
        on, shown = self.context.on, self._shown()
        on(tab.select, lambda: self.examine(), [], shown)
        on(self.again.click, lambda: self.examine(fresh=True), [], shown, show_progress="minimal")
        on(self.network.click, lambda: self.examine(hub=True), [], shown, show_progress="minimal")
        on(self.copy.click, self.tell_copied, [self.words], [self.note], js=COPY)
        for i, button in enumerate(self.fixes):
            on(button.click, self._fixer(i), [self.offered], shown, show_progress="minimal")
        on(self.explain.click, self.explain_error, [self.error], [self.cause], show_progress="minimal")
        on(self.repairs.input, self.switch, [self.repairs], [self.note, self.restart])
        on(self.restart.click, self.start_anew, [], [self.note])
        on(self.bridge.click, self.explain_bridge, [], [self.note, self.consent])
        on(self.consent.click, self.cross, [], [self.note, self.consent])

    def examine(self, *, fresh: bool = False, hub: bool = False) -> list[Any]:
        """Return the report and the buttons that go with it."""
        say, desk = self.context.say, self.context.desk
        report = desk.machine.examine(fresh=fresh, hub=hub)
        applied = {event.repair: event.message for event in desk.machine.repairs()}
        left = desk.machine.repairs_left()
        kept = dict(applied) | {name: text(f"repair.{name}.off") for name in left if name not in applied}
        ticked = [name for name in applied if name not in left]
        open_fixes = [
            problem for problem in report["problems"] if problem["auto"] and not problem["repaired"]
        ]
        offered = [problem["repair"] for problem in open_fixes][:FIXES]
        buttons = [
            gr.update(value=say("ui.doctor.fix", what=problem["title"]), visible=True)
            for problem in open_fixes[:FIXES]
        ]
        bridge = any(offer.command.endswith(" wsl") for offer in report["offers"])
        choices = [(say(message), name) for name, message in kept.items()]
        words = json.dumps(redact(to_json(self.context.words.say_all(report))), ensure_ascii=False, indent=1)
        return [
            report_card(report, say),
            *buttons,
            *[gr.update(visible=False)] * (FIXES - len(buttons)),
            gr.update(choices=choices, value=ticked, visible=bool(choices)),
            gr.update(visible=desk.machine.restart_waits()),
            gr.update(visible=bridge),
            words,
            offered,
            "",
        ]

    def tell_copied(self, came: str | None) -> str:
        """Say what came of copying the report, one of COPIED."""
        came = came if came in COPIED else "refused"
        return note_card(self.context.say(f"ui.doctor.{came}"), COPIED[came])

    def explain_error(self, words: str | None) -> str:
        """Say what a pasted error text means and what to do; of a long one its beginning and its end are read."""
        words = words or ""
        if not words.strip():
            return note_card(self.context.say("ui.doctor.error.empty"))
        if len(words) > MOST_CHARACTERS:
            words = words[: MOST_CHARACTERS // 4] + "\n" + words[-3 * MOST_CHARACTERS // 4 :]
        return cause_card(explain_words(words, self.context.words), self.context.say)

    def _shown(self) -> list[Any]:
        return [
            self.report,
            *self.fixes,
            self.repairs,
            self.restart,
            self.bridge,
            self.words,
            self.offered,
            self.note,
        ]

    def _fixer(self, position: int):
        def fix(offered: list[str]) -> list[Any]:
            """Switch the repair on and probe again in an environment that has it."""
            if position < len(offered):
                self.context.desk.machine.switch_repair(offered[position], on=True)
            shown = self.examine(fresh=True)
            shown[1 + FIXES + 1] = gr.update(visible=True)
            shown[-1] = note_card(self.context.say("ui.doctor.fixed"), "good")
            return shown

        return fix

    def switch(self, kept: list[str]) -> tuple[str, Any]:
        """Switch repairs on and off; they count after a restart of the studio's process."""
        desk = self.context.desk
        known = {event.repair for event in desk.machine.repairs()} | set(desk.machine.repairs_left())
        for name in known:
            desk.machine.switch_repair(name, on=name in kept)
        waits = desk.machine.restart_waits()
        note = note_card(self.context.say("ui.doctor.restart.needed")) if waits else ""
        return note, gr.update(visible=waits)

    def start_anew(self) -> str:
        """End this process so that the supervisor starts one with the repairs as they are chosen now."""
        if not self.context.desk.restart():
            raise StudioError(
                text("ui.doctor.restart.alone"),
                text("ui.doctor.restart.alone.why"),
                text("ui.doctor.restart.alone.fix"),
            )
        return note_card(self.context.say("ui.doctor.restarting"))

    def explain_bridge(self) -> tuple[str, Any]:
        """Say what the way into WSL2 does before it is taken."""
        return note_card(self.context.say("ui.doctor.wsl.what")), gr.update(visible=True)

    def cross(self) -> tuple[str, Any]:
        """Take the way into WSL2: a console shows the progress, and this window ends for the one in there."""
        self.context.desk.hand_over(self.context.keys.port)
        return note_card(self.context.say("ui.doctor.wsl.started")), gr.update(visible=False)
