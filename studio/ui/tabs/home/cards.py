"""What the first screen tells: this machine in words, what it lacks, where to start, what runs, what ran last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.facts import MachineFacts
from studio.core.i18n import Text
from studio.ui.quantities import size_words
from studio.ui.run_state import LiveView
from studio.ui.tabs.runs.table import Say, describe, run_name
from studio.ui.templates import render

MISSING_SHOWN = 3
RUNS_SHOWN = 6
UNFINISHED = ("stopped", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One of the three ways to begin: `do` and `value` of its button (`go` opens a tab), "" where there is none."""

    name: str
    icon: str
    """Its name in assets/icons"""
    title: str
    words: str
    button: str = ""
    do: str = ""
    value: str = ""
    go: str = ""
    primary: bool = False
    busy: bool = False
    """It is being done: not to be pressed again."""


def machine_card(
    machine: MachineFacts | None, advice: Text | None, free_bytes: int, say: Say, picture: str = ""
) -> str:
    """Return what this machine can do in a sentence, and its parts; None while it is still being looked at.

    `picture` is the name of an icon.
    """
    rows = ()
    if machine is not None:
        gpu = ", ".join(f"{one.name} · {one.vram_bytes / 2**30:.0f} GiB" for one in machine.gpus)
        rows = (
            ("graphics", gpu or say("ui.home.graphics.none")),
            ("processor", say("ui.home.cores", cores=machine.cores)),
            ("memory", f"{machine.ram_bytes / 2**30:.0f} GiB"),
            ("disk", size_words(free_bytes)),
        )
    return render("tabs/home/machine.html", say, machine=machine, advice=advice, rows=rows, picture=picture)


def missing_card(problems: Sequence[Mapping[str, Any]], say: Say, *, restart: bool = False) -> str:
    """Return the worst problems of the doctor's report that are still open, each with a button that mends it.

    `restart`: repairs were switched on that count after a restart of the studio.
    """
    found = [problem for problem in problems if not problem["repaired"]]
    return render("tabs/home/missing.html", say, problems=found, shown=MISSING_SHOWN, restart=restart)


def starts_card(starts: Sequence[Start], say: Say) -> str:
    """Return the three cards to begin with."""
    return render("tabs/home/starts.html", say, starts=starts)


def pick_continue(entries: Sequence[Any], active: str) -> Any | None:
    """Return the entry that "continue the last run" is about: the one that is on, else the newest that was cut short
    and can go on, else the newest."""
    if not entries:
        return None
    for entry in entries:
        if entry.record.run == active:
            return entry
    able = [entry for entry in entries if entry.record.state in UNFINISHED and entry.resumable.ok]
    return able[0] if able else entries[0]


def continue_start(entry: Any | None, active: str, icon: str, say: Say) -> Start:
    """Return the third start: its button resumes, or its words say why nothing can be resumed."""
    same = {"name": "continue", "icon": icon, "title": say("ui.home.continue")}
    if entry is None:
        return Start(**same, words=say("ui.home.continue.none"))
    record, name = entry.record, run_name(entry.record)
    if record.run == active:
        busy = "ui.home.continue.paused" if record.state == "paused" else "ui.home.continue.busy"
        words, button = say(busy, name=name), say("ui.home.continue.watch")
        return Start(**same, words=words, button=button, do="open", value=record.run)
    if record.state == "finished":
        words, button = say("ui.home.continue.done", name=name), say("ui.home.continue.talk")
        return Start(**same, words=words, button=button, do="chat", value=record.run)
    if not entry.resumable.ok:
        words = say("ui.home.continue.not", name=name, reason=entry.resumable.reason or "")
        return Start(**same, words=words, button=say("ui.home.continue.why"), do="open", value=record.run)
    words = say("ui.home.continue.lead", name=name, step=record.steps, total=record.total_steps or "–")
    if active:
        return Start(**same, words=f"{words} {say('ui.runs.resume.busy')}")
    return Start(**same, words=words, button=say("ui.home.continue.start"), do="resume", value=record.run)


def now_card(entry: Any | None, view: LiveView, waiting: int, say: Say) -> str:
    """Return the run that is on and how far it is; "" without one. script.js keeps bar and words up to date."""
    if entry is None:
        return ""
    paused = entry.record.state == "paused"
    phase = (
        "ui.state.paused" if paused else f"ui.phase.{view.phase}" if view.phase else "ui.runs.state.running"
    )
    return render(
        "tabs/home/now.html",
        say,
        run=describe(entry, say),
        share=view.step / view.total_steps if view.total_steps else 0.0,
        title="ui.home.now.paused" if paused else "ui.home.now",
        phase=say(phase),
        waiting=waiting,
    )


def last_runs(entries: Sequence[Any], say: Say) -> str:
    """Return the newest runs with their curves; a sentence when there are none."""
    return render("tabs/home/last.html", say, runs=[describe(entry, say) for entry in entries[:RUNS_SHOWN]])
