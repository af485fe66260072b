"""The parts of a run's page as they stand now: what a page lacks of them, told by marks that it sends back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from markupsafe import escape

from studio.core.errors import StudioError
from studio.core.recipe import Recipe, share_held_out
from studio.core.run_record import RunRecord
from studio.ui.cards import note_card, plan_card, run_label
from studio.ui.context import Context
from studio.ui.header.strip import chip, machine_strip
from studio.ui.metric_columns import label_metrics, payload
from studio.ui.rewards.answers import answers_card, read_filter
from studio.ui.run_state import LiveView, log_lines
from studio.ui.share.view import share_banner
from studio.ui.tabs.training.cards import (
    controls,
    done_card,
    failure_card,
    fold_card,
    log_card,
    samples_card,
    settings_card,
    slower_card,
    stall_card,
    stopped_card,
    verdict_cards,
)
from studio.ui.tabs.training.run_advice import judge
from studio.ui.tabs.training.status import ENDED, state_words, status_card
from studio.ui.templates import render

MOVING = ("running", "paused")
RESUMABLE = ("stopped", "failed", "interrupted", "waiting")
PICKED_RUNS = 60
"""So many of the newest runs are in the picker; the Runs tab has all."""
LOOK_S = 5
"""How often the verdicts and the card's memory are looked at while a run goes on."""
LIST_S = 60
"""How often the list of runs is looked through for names that were changed elsewhere."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A run as it stands now; `here` says whether this studio trains it."""

    record: RunRecord
    view: LiveView
    state: str
    here: bool


class RunPage:
    """Answers a page that says what it shows; keeps nothing of it, so that pages, reloads and restarts agree."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def look(self, shown: object) -> dict[str, Any]:
        """Return what is new since the page's last look.

        `shown` is what the page has: {"run": wanted or "", "active": run that was on or None before the first look,
        "chip": {"run", "state"} as the last answer had it, "sample": step picked or None, "answers": which are looked
        at (see read_filter), "chart": what its chart has (see payload) or None without a chart, "marks": {part: mark},
        "rest_s": since somebody touched it}. The answer holds run, active ("" for none), state and chip, `ended` (the
        end of the run that the chip told of, in words, once), `parts` and `marks` of what changed, `points` for the
        chart or None, and `renews`: whether the page is to come back by itself.
        """
        shown = shown if isinstance(shown, Mapping) else {}
        rest_s = shown.get("rest_s")
        self.context.renewal.note_presence(rest_s if isinstance(rest_s, (int, float)) else 0.0)
        marks, before = (_mapping(shown.get(name)) for name in ("marks", "chip"))
        active, now_s = self.context.desk.runs.active or "", time.time()
        stand = cache(lambda run: self._stand(run, active))
        one = stand(_wanted(shown, active)) or stand(active or self.newest())
        # The strip tells of the run that is on, whichever one looks at; of its end until another one is chosen.
        told = stand(active) or stand(str(before.get("run") or "")) or one
        if one is None or told is None:
            made, points = self._nothing(), None
        else:
            made = self._parts(one, active, shown, now_s) | {"chip": self._chip(told)}
            chart = shown.get("chart")
            points = self._points(one.view, one.record.run, chart) if isinstance(chart, Mapping) else None
        shared = self.context.desk.sharing.view()
        made["banner"] = (str(shared.number), lambda: share_banner(shared, self.context.say))
        if marks and self.has_card():  # finding out about the machine takes a moment: the run goes first
            made["machine"] = (str(int(now_s / LOOK_S)), self._machine)
        new = {name: (mark, make()) for name, (mark, make) in made.items() if marks.get(name) != mark}
        return {
            "run": one.record.run if one else "", "active": active, "state": one.state if one else "",
            "chip": {"run": told.record.run, "state": told.state} if told else {},
            "ended": self._end_of(stand, before), "points": points, "renews": self.context.renewal.announced,
            "parts": {name: html for name, (_, html) in new.items()},
            "marks": {name: mark for name, (mark, _) in new.items()},
        }  # fmt: skip

    def _parts(
        self, one: Standing, active: str, shown: Mapping[str, Any], now_s: float
    ) -> dict[str, tuple[str, Callable[[], str]]]:
        """Each part's mark, which changes when it does, and what draws it."""
        record, view, state, here = one.record, one.view, one.state, one.here
        say, run, free = self.context.say, record.run, not active
        moves = state in MOVING
        clock = int(now_s) if moves else 0
        stall = view.stall if here else None
        diagnosis = view.diagnosis if state == "failed" else None
        sample, wanted = shown.get("sample"), read_filter(shown.get("answers"))
        picked = sample if isinstance(sample, int) else None
        newest = view.samples[-1].seq if view.samples else 0
        resumable = free and state in RESUMABLE
        former = state == "finished" and self._is_former(run)
        return {
            "status": (
                f"{run} {view.seq} {state} {clock} {record.name}",
                lambda: status_card(view, state, say, record, now_s),
            ),
            "controls": (f"{run} {state} {here} {resumable}", lambda: controls(state, here, resumable, say)),
            "slower": (f"{run} {view.plan_seq}", lambda: slower_card(view.slower, say)),
            "stall": (f"{run} {stall.seq if stall else 0}", lambda: stall_card(stall, say)),
            "failure": (f"{run} {view.seq if diagnosis else 0}", lambda: failure_card(diagnosis, say)),
            "verdicts": (
                f"{run} {state} {int(now_s / LOOK_S) if moves else view.seq} {former}",
                lambda: self._verdicts(view, state, record, now_s, former),
            ),
            "samples": (f"{run} {newest} {picked}", lambda: self._samples(run, view, picked)),
            "answers": (
                f"{run} {self.context.desk.answers.measure(run)} {wanted}",
                lambda: answers_card(self.context.desk.answers.read(run, wanted), say),
            ),
            "log": (
                f"{run} {len(view.log)} {view.log[-1].time_s if view.log else 0}",
                lambda: log_card(view, say),
            ),
            "settings": (run, lambda: self._settings(run)),
            "plan": (
                f"{run} {view.plan_seq}",
                lambda: fold_card(say("ui.plan.fold"), plan_card(view.plan, view.swaps, say)),
            ),
            "spoken": (
                f"{state} {view.phase if state == 'running' else ''}",
                lambda: self._spoken(view, state),
            ),
            "pick": (
                f"{run} {state} {active} {record.name} {int(now_s / LIST_S)}",
                lambda: self._picker(run),
            ),
        }

    def _chip(self, told: Standing) -> tuple[str, Callable[[], str]]:
        """The strip's chip: its mark and what draws it."""
        record, view, state, here = told.record, told.view, told.state, told.here
        mark = f"{record.run} {view.seq} {state} {here}"
        return mark, lambda: chip(view, state, self.context.say, record, here=here)

    def _end_of(
        self, stand: Callable[[str], Standing | None], before: Mapping[str, Any]
    ) -> dict[str, str] | None:
        """How the run ended that was on at the page's last look, {run, name, words}; None while none did."""
        was = stand(str(before.get("run") or "")) if before.get("state") in MOVING else None
        if was is None or was.state not in ENDED:
            return None
        words, record = state_words(was.view, was.state, self.context.say), was.record
        return {"run": record.run, "name": record.name or record.run, "words": words}

    def _points(self, view: LiveView, run: str, chart: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the page's chart lacks."""
        card = view.on_card
        card = self.has_card() if card is None else card
        metrics = label_metrics(view.metrics, self.context.say)
        return payload(run, view.generation, view.points, chart, card=card, metrics=metrics)

    def _nothing(self) -> dict[str, tuple[str, Callable[[], str]]]:
        """The page of a workspace without runs."""
        say = self.context.say
        made = {
            "status": lambda: note_card(say("ui.run.none")),
            "log": lambda: log_card(LiveView(), say),
            "chip": lambda: chip(None, "", say),
        }
        empty = (
            "controls",
            "slower",
            "stall",
            "failure",
            "verdicts",
            "samples",
            "answers",
            "settings",
            "plan",
            "pick",
            "spoken",
        )
        return {name: ("none", make) for name, make in (made | dict.fromkeys(empty, str)).items()}

    def _samples(self, run: str, view: LiveView, picked: int | None) -> str:
        data = recipe.data if (recipe := self.recipe(run)) else None
        rows = view.facts.rows_used if view.facts else 0
        held_out = data is None or bool(data.validation or share_held_out(data, rows))
        return samples_card(view.samples, picked, self.context.say, held_out=held_out)

    def _settings(self, run: str) -> str:
        recipe = self.recipe(run)
        return settings_card(recipe, self.context.words) if recipe else ""

    def _is_former(self, run: str) -> bool:
        """Whether the form holds another run than this one, but for its name."""
        recipe, draft = self.recipe(run), self.context.draft()
        return recipe is not None and replace(recipe, name="") != replace(draft, name="")

    def _verdicts(self, view: LiveView, state: str, record: RunRecord, now_s: float, former: bool) -> str:
        """What is to be said of the run, and what comes next once it is done."""
        run = record.run
        recipe = self.recipe(run)
        method = recipe.adapter.method if recipe else "lora"
        said = verdict_cards(judge(view, state, now_s, method), self.context.say)
        if state == "finished":
            return done_card(record, view, self.context.say, former=former) + said
        answers = state in ENDED and view.saved_step
        return (stopped_card(run, self.context.say) if answers else "") + said

    def _machine(self) -> str:
        """The machine in the strip, with the memory of its card."""
        health = self.context.desk.machine
        return machine_strip(health.facts(), health.examine()["backend"], health.memory(), self.context.say)

    def has_card(self) -> bool:
        """Whether the machine is known to have a graphics card whose memory can be told; no page waits for that."""
        health = self.context.desk.machine
        return health.is_known() and bool(health.facts().gpus)

    def _spoken(self, view: LiveView, state: str) -> str:
        """What a screen reader says: the phase when it changes, and the end."""
        say = self.context.say
        name = state_words(view, state, say)
        if state == "running" and view.phase:
            return escape(say("ui.run.spoken", state=name, phase=say(f"ui.phase.{view.phase}")))
        return escape(name)

    def _picker(self, run: str) -> str:
        """The newest runs and the one on show, to choose from."""
        say, records = self.context.say, self.context.desk.runs.list()
        shown = [one for i, one in enumerate(records) if i < PICKED_RUNS or one.run == run]
        runs = [(record.run, run_label(record, say)) for record in shown]
        return render("tabs/training/picker.html", say, run=run, runs=runs)

    def log_text(self, run: str) -> str:
        """The whole log with its dates and every step, for a file: the page has its last lines alone."""
        events = self.context.desk.runs.events(run) if self.record(run) else ()
        lines, say = (line for event in events for line in log_lines(event)), self.context.say
        return "".join(
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(line.time_s))} {line.level:4} {say(line.message)}\n"
            for line in lines
        )

    def _stand(self, run: str, active: str) -> Standing | None:
        """The run as it stands, None when there is no such run."""
        record = self.record(run) if run else None
        if record is None:
            return None
        view = self.context.view(run)
        return Standing(record, view, self.state(view, record, active), run == active)

    def state(self, view: LiveView, record: RunRecord, active: str) -> str:
        """How the run stands: trained here, or from a command line in the same workspace, or cut off."""
        if record.run == active:
            return "paused" if view.state == "paused" else "running"
        if view.state in ("running", "paused"):
            return "running" if record.state == "running" else "interrupted"
        return view.state

    def record(self, run: str) -> RunRecord | None:
        """The run's record, None when there is no such run."""
        try:
            return self.context.desk.runs.read(run)
        except StudioError:
            return None  # deleted, damaged, or an address that somebody made up

    def recipe(self, run: str) -> Recipe | None:
        """The run's frozen recipe, None when it cannot be read."""
        try:
            return self.context.desk.runs.recipe(run)
        except StudioError:
            return None  # damaged: the curves can be looked at all the same

    def newest(self) -> str:
        """The newest run's id, "" without one."""
        records = self.context.desk.runs.list()
        return records[0].run if records else ""


def _mapping(said: object) -> Mapping[str, Any]:
    """Return what a page said where it is of that form; nothing else."""
    return said if isinstance(said, Mapping) else {}


def _wanted(shown: Mapping[str, Any], active: str) -> str:
    """Return the run that a page is to show: the one that starts under its eyes, else the one that it asks for.

    A run that was on before its first look must not hide the one of its address.
    """
    run, known = str(shown.get("run") or ""), shown.get("active")
    starts = active != known and known is not None
    return active if active and (starts or not run) else run
