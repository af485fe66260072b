"""The guests' page: the runs, how the chosen one stands, its charts, samples and log, and a talk with finished models.

An app of its own beside the window: it has no handler that starts, changes, exports or deletes anything, takes no path
and serves no file. What a page sends is a run's id and a question; both are checked here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.run_record import RunRecord
from studio.ui.context import Context
from studio.ui.guest.cards import GuestRedactor, guest_talk, run_cards, run_list
from studio.ui.header.strip import make_brand
from studio.ui.metric_columns import label_metrics, payload
from studio.ui.run_state import LiveView
from studio.ui.shell.blocks import TerseBlocks
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.tabs.training.charts import make_charts
from studio.ui.templates import render

NOTHING = {"run": "", "generation": -1, "cursor": None, "seq": -1, "state": "", "listed": -1.0}
"""What a page has got before its first look."""
FORGET_PHRASE = "if (location.hash) history.replaceState(null, '', location.pathname);"
"""The link of a guest who is in already brings the pass phrase along: it must not stay in the address."""
LISTED_S = 3.0
"""The list of runs is read once in this time, however many guests look."""
QUESTION_LETTERS = 2000
TURNS = 8
"""Of a talk the last ones are kept: a longer one costs memory of the card."""
ANSWER_TOKENS = 256
QUESTIONS_EACH, QUESTIONS_ALL, QUESTIONS_S = 6, 20, 60.0


class Quota:
    """How many questions may be asked in QUESTIONS_S: by one guest, and by all together."""

    def __init__(self, clock=time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: list[tuple[float, str]] = []

    def take(self, guest: str) -> bool:
        """Count a question of `guest`; return whether it may be asked."""
        with self._lock:
            now_s = self._clock()
            self._asked = [one for one in self._asked if now_s - one[0] < QUESTIONS_S]
            mine = sum(name == guest for _, name in self._asked)
            if mine >= QUESTIONS_EACH or len(self._asked) >= QUESTIONS_ALL:
                return False
            self._asked.append((now_s, guest))
            return True


class GuestPage:
    """Components and handlers, all of them bound for the role `viewer`."""

    def __init__(self, context: Context, quota: Quota | None = None) -> None:
        """`quota` is that of the guests' pages in other languages too."""
        self.context = context
        self.redactor = GuestRedactor(context.workspace, context.say)
        self.quota = quota or Quota()
        self._listed: tuple[float, tuple[RunRecord, ...]] = (-LISTED_S, ())
        self._lock = threading.Lock()

    def build(self) -> None:
        """Make the components; inside of a gr.Blocks."""
        say = self.context.say
        with gr.Row(elem_id="header"):
            make_brand(say, self.context.language, whole=False, script=FORGET_PHRASE)
            gr.HTML(render("guest/badge.html", say), elem_id="guest-badge")
        with gr.Row(elem_id="guest-stage"):
            with gr.Column(scale=3, min_width=260, elem_id="guest-left"):
                self.list = gr.HTML("", elem_id="guest-runs")
                self.voice = make_voice("#guest-left", "guest-said")
            with gr.Column(scale=8, min_width=320):
                with gr.Tabs(elem_id="tabs"):
                    with gr.Tab(say("ui.guest.run"), id="run", elem_id="tab-run"):
                        self.status = gr.HTML("", elem_id="guest-status")
                        self.charts = make_charts(say, "guest-charts")
                        self.samples = gr.HTML("", elem_id="guest-samples")
                        self.log = gr.HTML("", elem_id="guest-log")
                    with gr.Tab(say("ui.guest.chat"), id="chat", elem_id="tab-chat"):
                        self.talk = gr.HTML(guest_talk([], self.redactor), elem_id="guest-talk")
                        with gr.Row(elem_classes=["toolbar"]):
                            self.input = gr.Textbox(
                                show_label=False,
                                label=say("ui.guest.ask"),
                                placeholder=say("ui.guest.ask"),
                                max_length=QUESTION_LETTERS,
                                max_lines=6,
                                elem_id="guest-input",
                                scale=8,
                            )
                            self.send = gr.Button(
                                say("ui.chat.send"), variant="primary", scale=0, min_width=110, elem_id="guest-send"
                            )  # fmt: skip
        self.timer = gr.Timer(1.0)
        # Two states, for a look that is on its way must not take back the choice made meanwhile.
        self.chosen = gr.State("")
        self.watched = gr.State(NOTHING)
        self.turns = gr.State([])
        self.shown = [self.watched, self.list, self.charts, self.status, self.samples, self.log]

    def bind(self, page_load) -> None:
        """Look at once and every second; choose a run; ask."""
        on = self.context.on
        seen = [self.chosen, self.watched]
        on(page_load, self.tick, seen, self.shown, role="viewer")
        on(self.timer.tick, self.tick, seen, self.shown, role="viewer")
        on(self.charts.replay, self.replay, seen, [self.watched, self.charts], role="viewer")
        chosen = on(
            self.voice.said,
            self.choose,
            [self.voice],
            [self.chosen, self.turns, self.talk],
            role="viewer",
            trigger_mode="multiple",
        )
        on(chosen.then, self.tick, seen, self.shown, role="viewer")
        asking = [self.input, *seen, self.turns]
        for event in (self.send.click, self.input.submit):
            on(
                event,
                self.answer,
                asking,
                [self.input, self.talk, self.turns],
                role="viewer",
                concurrency_limit=1,
                concurrency_id="guest-chat",
            )

    def records(self) -> tuple[RunRecord, ...]:
        """Return the workspace's runs, newest first, as they were within LISTED_S."""
        with self._lock:
            if time.monotonic() - self._listed[0] >= LISTED_S:
                self._listed = (time.monotonic(), tuple(self.context.desk.runs.list()))
            return self._listed[1]

    def find(self, run: object) -> RunRecord | None:
        """Return the run that a page names, among those in the list; None for anything else, whatever it is."""
        return next((record for record in self.records() if record.run == run), None)

    def on_show(self, chosen: str, watched: dict) -> RunRecord | None:
        """Return the run that a page chose, else the one that it shows."""
        return self.find(chosen) or self.find(watched["run"])

    def choose(self, said: object) -> tuple[str, list, str]:
        """Show another run, with an empty talk."""
        do, run, _ = read_said(said)
        if do != "show" or self.find(run) is None:
            raise gr.Error(self.context.say("ui.guest.unknown"), print_exception=False)
        return run, [], guest_talk([], self.redactor)

    def replay(self, chosen: str, watched: dict) -> tuple[dict, Any]:
        """Send a chart that begins anew all rows of its run."""
        record = self.on_show(chosen, watched)
        if record is None:
            return watched, gr.skip()
        view = self.context.view(record.run)
        message = self._points(record.run, view, {})
        return watched | {"generation": view.generation, "cursor": message["until"]}, message

    def _points(self, run: str, view: LiveView, had: dict) -> dict[str, Any] | None:
        """Return what a page's chart lacks that has what `had` says."""
        metrics = label_metrics(view.metrics, self.redactor.say)
        card = view.on_card is not False
        return payload(run, view.generation, view.points, had, card=card, metrics=metrics)

    def tick(self, chosen: str, watched: dict) -> list[Any]:
        """Return what is new since this page's last look; nothing at all when nothing is."""
        records, skip = self.records(), gr.skip()
        record = self.on_show(chosen, watched) or (records[0] if records else None)
        listed = self._listed[0]
        if record is None:
            if watched["listed"] >= 0:
                return [skip] * len(self.shown)
            return [watched | {"listed": listed}, run_list((), {}, "", self.redactor), *[skip] * 4]
        view = self.context.view(record.run)
        state = self._state(record, view.state)
        fresh = record.run != watched["run"] or watched["seq"] < 0
        if not fresh and (view.seq, state, listed) == (watched["seq"], watched["state"], watched["listed"]):
            return [skip] * len(self.shown)
        message = self._points(record.run, view, {} if fresh else watched)
        seen = watched | {"run": record.run, "seq": view.seq, "state": state, "listed": listed}
        if message:
            seen |= {"generation": message["generation"], "cursor": message["until"]}
        moved = fresh or (view.seq, state) != (watched["seq"], watched["state"])
        cards = run_cards(view, state, record, self.redactor) if moved else {}
        return [
            seen,
            run_list(records, {record.run: state}, record.run, self.redactor),
            message or skip,
            *(cards.get(name, skip) for name in ("status", "samples", "log")),
        ]

    def _state(self, record: RunRecord, state: str) -> str:
        """Return how the run stands: what its events say, unless nobody works on it any more."""
        if state not in ("running", "paused", "waiting"):
            return state
        if record.run == self.context.desk.runs.active or record.state == "running":
            return "running" if state == "waiting" else state
        return record.state if state == "waiting" else "interrupted"

    def answer(self, question: str, chosen: str, watched: dict, turns: list) -> Iterator[list[Any]]:
        """Yield the talk with the chosen run's model as the answer grows. Raises StudioError with the reason if not."""
        question = str(question or "").strip()[:QUESTION_LETTERS]
        if not question:
            return
        record = self.on_show(chosen, watched)
        self._refuse(record)
        asked = [*turns[-TURNS:], {"role": "user", "content": question}]
        yield ["", guest_talk([*asked, {"role": "assistant", "content": ""}], self.redactor), turns]
        words = ""
        answers = self.context.desk.chat.answer(asked, run=record.run, max_new_tokens=ANSWER_TOKENS)
        with closing(answers):
            for answer in answers:
                words = answer.words
                yield [
                    "",
                    guest_talk([*asked, {"role": "assistant", "content": words}], self.redactor),
                    turns,
                ]
        done = [*asked, {"role": "assistant", "content": words}]
        yield ["", guest_talk(done, self.redactor), done]

    def _refuse(self, record: RunRecord | None) -> None:
        kind = ""
        if self.context.desk.runs.active is not None:
            kind = "training"  # a paused run too: its memory is not for guests
        elif record is None or record.state != "finished":
            kind = "unfinished"
        elif not self.quota.take(self.context.caller):
            kind = "often"
        if kind:
            id = f"ui.guest.chat.{kind}"
            raise StudioError(text(id), text(f"{id}.why"), text(f"{id}.fix"))


def build_guest(context: Context, quota: Quota | None = None) -> gr.Blocks:
    """Return the guests' page in the context's language, not yet served."""
    page = GuestPage(context, quota)
    title = context.say("ui.brand")
    with TerseBlocks(
        title=title, analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
    ) as blocks:
        page.build()
        page.bind(blocks.load)
    return blocks
