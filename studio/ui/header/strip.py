"""The strip above all tabs: the machine and its memory, how it computes, the run that is on, who may look in."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr
from markupsafe import Markup

from studio.core.facts import MachineFacts
from studio.core.run_record import RunRecord
from studio.ui.cards import machine_words
from studio.ui.context import Context
from studio.ui.quantities import size_words
from studio.ui.run_state import LiveView
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.shell.scripts import read_script
from studio.ui.templates import render

MODES = {"cpu": "cpu", "none": "none", "pytorch": "twins", "triton": "triton", "triton_elementwise": "triton"}
"""Backend of the doctor's report -> what the strip calls it; other backends show their own name."""


class Header:
    """Components and handlers of the strip."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Row(elem_id="header"):
            make_brand(context.say, context.language)
            self.machine = gr.HTML("", elem_id="machine")
            self.chip = gr.HTML(chip(None, "", say), elem_id="run-chip")
            self.voice = make_voice("#header", "header-said")
        # Drawn with the run's parts, each second: a page that was open before somebody shared tells of it too.
        gr.HTML("", html_template='<div id="run-banner"></div>', elem_id="share-banner")

    def bind(self, page_load, stop: Callable[[str], bool]) -> None:
        """Show the machine on every page load; `stop(run)` is what the chip's button does, False where it came late."""
        self.context.on(page_load, self.show_machine, [], [self.machine])

        def hear(said: object) -> None:
            do, run, _ = read_said(said)
            if do == "stop" and not stop(run):
                gr.Info(self.context.say("ui.run.not_running"), duration=6)

        self.context.on(self.voice.said, hear, [self.voice])

    def show_machine(self) -> Markup:
        """Return the machine, its memory and how it computes."""
        health = self.context.desk.machine
        return machine_strip(health.facts(), health.examine()["backend"], health.memory(), self.context.say)


def make_brand(say: Callable[..., str], language: str, *, whole: bool = True, script: str = "") -> gr.HTML:
    """Return the studio's mark and name, which tell the page its language (shell/set_language.js).

    whole: with the words that an owner's page needs. script: JavaScript that runs with it.
    """
    return gr.HTML(
        render("header/brand.html", say, language=language, whole=whole),
        js_on_load=read_script("shell/set_language.js") + script,
        elem_id="brand",
    )


def machine_strip(machine: MachineFacts, backend: str, used: tuple[int, int] | None, say) -> Markup:
    """Return the machine's name, its memory as a bar (`used`: bytes, of bytes in all), and how it computes."""
    mode = say(f"ui.mode.{MODES[backend]}") if backend in MODES else backend
    if machine.wsl:
        mode = say("ui.mode.wsl", mode=mode)
    sizes = {"used": size_words(used[0]), "total": size_words(used[1])} if used else {}
    return render(
        "header/machine.html",
        say,
        name=machine_words(machine, say),
        used=say("ui.strip.memory", **sizes) if used else "",
        share=min(1.0, used[0] / max(1, used[1])) if used else 0.0,
        mode=mode,
    )


def chip(
    view: LiveView | None, state: str, say, record: RunRecord | None = None, *, here: bool = False
) -> Markup:
    """Return the run that is on: its state, how far it is, how long it will take, and the way to it.

    With a button that stops it where this studio trains it (`here`).
    """
    if view is None or record is None:
        return render("header/chip.html", say, run="")
    on = state in ("running", "paused")
    percent = f"{view.step / view.total_steps:.0%}" if view.total_steps and on else ""
    phase = say(f"ui.phase.{view.phase}") if state == "running" and view.phase not in ("", "train") else ""
    left = (
        say("ui.chip.left", time=_time_left(view.left_s, say)) if view.left_s and state == "running" else ""
    )
    return render(
        "header/chip.html",
        say,
        run=record.run,
        state=state,
        percent=percent,
        head=say("ui.state.paused") if state == "paused" else percent,  # of the page's title
        said=[part for part in (say(f"ui.state.{state}"), phase, percent, left) if part],
        stoppable=on and here,
    )


def _time_left(seconds: float, say) -> str:
    """Return about how long, in minutes: the header changes once a minute, the Training tab has the seconds."""
    minutes = round(seconds / 60) if 0 <= seconds < 1e12 else 0
    if minutes >= 60:
        return say("ui.chip.hours", time=f"{minutes // 60}:{minutes % 60:02d}")
    return say("ui.chip.minutes", count=minutes) if minutes else say("ui.chip.moment")
