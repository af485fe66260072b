"""The strip above all tabs: the machine and its memory, how it computes, the run that is on, who may look in."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

import gradio as gr

from studio.core.facts import MachineFacts
from studio.core.run_record import RunRecord
from studio.ui.cards import machine_words, size_words
from studio.ui.context import Context
from studio.ui.html_events import make_voice, read_said
from studio.ui.live import LiveView
from studio.ui.style import ICON

SCRIPT = Path(__file__).resolve().parents[2] / "assets" / "language.js"
MODES = {"cpu": "cpu", "none": "none", "pytorch": "twins", "triton": "triton", "triton_elementwise": "triton"}
"""Backend of the doctor's report -> what the strip calls it; other backends show their own name."""


class Header:
    """Components and handlers of the strip."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Row(elem_id="header"):
            make_brand(context.say, context.language, self._words())
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

    def show_machine(self) -> str:
        """Return the machine, its memory and how it computes."""
        health = self.context.desk.machine
        return machine_strip(health.facts(), health.examine()["backend"], health.memory(), self.context.say)

    def _words(self) -> str:
        """The words that page.js needs, and the place where assets/run.js says that the studio does not answer."""
        say = self.context.say
        words = " ".join(
            f'data-{name}="{escape(say(f"ui.page.{name}"))}"' for name in ("cancel", "done", "silent")
        )
        away = escape(say("ui.page.away"))
        return f'<i id="page-words" {words}></i><p id="studio-away" role="status" data-words="{away}"></p>'


def make_brand(say: Callable[..., str], language: str, more: str = "", script: str = "") -> gr.HTML:
    """Return the studio's mark and name, which tell the page its language (assets/language.js), before HTML of `more`.

    script: JavaScript that runs with it.
    """
    icon = ICON.read_text(encoding="utf-8")
    name = escape(say("ui.brand"))
    # A blank that is filled in the page keeps its name.
    told = {"lost": say("ui.page.lost"), "kind": say("ui.page.kind", name="{name}", kinds="{kinds}")}
    words = " ".join(f'data-{part}="{escape(one)}"' for part, one in told.items())
    return gr.HTML(
        f'<h1 lang="{language}" {words}>{icon}<span>{name}</span></h1>{more}',
        js_on_load=SCRIPT.read_text(encoding="utf-8") + script,
        elem_id="brand",
    )


def machine_strip(machine: MachineFacts, backend: str, used: tuple[int, int] | None, say) -> str:
    """Return the machine's name, its memory as a bar (`used`: bytes, of bytes in all), and how it computes."""
    mode = say(f"ui.mode.{MODES[backend]}") if backend in MODES else backend
    if machine.wsl:
        mode = say("ui.mode.wsl", mode=mode)
    bar = ""
    if used:
        share = min(1.0, used[0] / max(1, used[1]))
        words = say("ui.strip.memory", used=size_words(used[0]), total=size_words(used[1]))
        bar = (
            f'<span class="memory" title="{escape(words)}"><i style="width:{share:.1%}"></i></span>'
            f'<span class="memory-words">{escape(words)}</span>'
        )
    return (
        f'<span class="name">{escape(machine_words(machine, say))}</span>{bar}'
        f'<button type="button" class="mode" data-go="doctor" data-focus="mode" title="{escape(say("ui.mode.help"))}">'
        f"{escape(mode)}</button>"
    )


def chip(
    view: LiveView | None, state: str, say, record: RunRecord | None = None, *, here: bool = False
) -> str:
    """Return the run that is on: its state, how far it is, how long it will take, and the way to it.

    With a button that stops it where this studio trains it (`here`).
    """
    if view is None or record is None:
        return f'<span class="chip" data-state=""><i></i>{escape(say("ui.chip.idle"))}</span>'
    on = state in ("running", "paused")
    percent = f"{view.step / view.total_steps:.0%}" if view.total_steps and on else ""
    phase = say(f"ui.phase.{view.phase}") if state == "running" and view.phase not in ("", "train") else ""
    left = say("ui.chip.left", time=_short(view.left_s)) if view.left_s and state == "running" else ""
    said = " · ".join(part for part in (say(f"ui.state.{state}"), phase, percent, left) if part)
    head = say("ui.state.paused") if state == "paused" else percent  # of the page's title
    words, run = escape(say("ui.run.stop")), escape(record.run)
    stop = (
        f'<button type="button" data-do="stop" data-value="{run}" data-focus="chip-stop" class="stop" title="{words}" '
        f'aria-label="{words}">■</button>'
        if on and here
        else ""
    )
    return (
        f'<span class="chip {escape(state)}" data-run="{run}" data-state="{escape(state)}" data-percent="{percent}" '
        f'data-head="{escape(head)}"><i></i><button type="button" class="link" data-go="training" '
        f'data-run-choice="{run}" data-focus="chip">{escape(said)}</button>{stop}</span>'
    )


def _short(seconds: float) -> str:
    minutes = round(seconds / 60) if 0 <= seconds < 1e12 else 0
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{max(1, minutes)} min"
