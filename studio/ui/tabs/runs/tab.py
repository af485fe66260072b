"""The Runs tab: the queue, every run of the workspace and what can be done with it, several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.ui.cards import status_note
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.quantities import size_words
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.home.tab import GO
from studio.ui.tabs.runs.queue import queue_card
from studio.ui.tabs.runs.table import CHUNK, LETTERS, Panel, comparison_card, matches, run_name, runs_table
from studio.ui.tabs.training.tab import TrainingTab
from studio.ui.templates import render

FEWEST, MOST = 2, len(LETTERS)
FRESH: dict[str, Any] = {"words": "", "shown": CHUNK, "panel": Panel(), "sent": (0, 0)}
"""What a page shows at first: no search, one chunk of rows, no row open; `sent` marks what it has got."""
NAME_LENGTH = 80
SEARCH_LENGTH = 200


class Ask(NamedTuple):
    """What a button of the page asks for; nothing of it is trusted."""

    do: str
    value: str
    form: dict[str, object]


class RunsTab:
    """Components and handlers; `page` holds what one page shows, so that two pages do not disturb each other."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.voice = make_voice("#tab-runs", "runs-said")
        self.go = gr.Textbox("", visible=False, elem_id="runs-go")
        self.note = gr.HTML("", elem_id="runs-note")
        self.queue = gr.HTML("", elem_id="queue-body")
        gr.HTML(render("tabs/runs/tools.html", context.say, fewest=FEWEST, most=MOST), elem_id="runs-tools")
        self.overlay = gr.HTML(
            {},
            html_template=render("tabs/runs/overlay.html", context.say),
            js_on_load=read_script("tabs/runs/script.js"),
            apply_default_css=False,
            elem_id="runs-overlay",
        )
        self.differences = gr.HTML("", elem_id="runs-differences")
        self.body = gr.HTML("", elem_id="runs-body")
        gr.HTML(render("tabs/runs/import.html", context.say), elem_id="runs-import")

    def bind(self, tab: gr.Tab, form: Form, training: TrainingTab) -> None:
        """Draw when the tab is opened, and after every action."""
        on = self.context.on
        self.form, self.training = form, training
        # A hidden tab's state would not be there; bind() is called outside of all tabs.
        self.page = gr.State(FRESH)
        fields = list(form.components.values())
        drawn = [self.page, self.queue, self.body]
        self.outputs = [
            *drawn, self.note, self.overlay, self.differences, self.go, training.watched, *fields,
        ]  # fmt: skip
        # One after the other: each takes the page's state and gives it back changed.
        in_turn = {"concurrency_id": "runs-page", "concurrency_limit": 1}
        on(tab.select, lambda page: self.draw(page | {"sent": FRESH["sent"]}), [self.page], drawn, **in_turn)
        on(self.overlay.refresh, self.draw, [self.page], drawn, **in_turn)
        hearing = {"trigger_mode": "multiple"} | in_turn
        said = on(self.voice.said, self.hear, [self.voice, self.page], self.outputs, **hearing)
        said.success(None, [self.go], None, js=GO, api_visibility="private")

    def draw(self, page: dict) -> list[Any]:
        """Return the page's state, the queue and the table; what the page has got already is skipped."""
        desk, say = self.context.desk, self.context.say
        queue = desk.queue
        entries = desk.library.entries()
        found = [entry for entry in entries if matches(entry, page["words"], say)]
        table = runs_table(
            found, say, total=len(entries), shown=page["shown"], words=page["words"], panel=page["panel"],
            active=desk.runs.active or "",
        )  # fmt: skip
        card = queue_card(
            queue.items(), say, reason=queue.reason, keep_going=queue.keep_going, notice=queue.notice,
            paused=next((entry.record.run for entry in entries if entry.record.state == "paused"), ""),
        )  # fmt: skip
        marks = (hash(card), hash(table))
        parts = [
            gr.skip() if mark == before else part
            for part, mark, before in zip((card, table), marks, page["sent"], strict=True)
        ]
        return [page | {"sent": marks}, *parts]

    def hear(self, said: dict, page: dict) -> list[Any]:
        """Do what a button of this tab asks, and draw what came of it."""
        ask = Ask(*read_said(said))
        acts = {
            "search": self._search, "more": self._more, "actions": self._open_panel, "rename": self._open_panel,
            "cancel": self._close_panel, "again": self._ask_again, "again-start": self._start_again,
            "again-queue": self._queue_again, "open": self._show, "chat": self._talk, "export": self._take,
            "resume": self._resume, "duplicate": self._duplicate, "save": self._rename, "delete": self._delete,
            "compare": self._compare, "close": self._close_comparison, "import": self._import_run,
        }  # fmt: skip
        if ask.do in acts:
            changes = acts[ask.do](ask, page)
        elif ask.do in ("up", "down", "drop", "hold", "go", "keep", "stop"):
            changes = self._order(ask.do, ask.value)
        else:
            changes = {}
        return self._answer(page, changes)

    # What the buttons do: each returns what changes, by the output's name; `page` is what the page's state gets -----

    def _search(self, ask: Ask, page: dict) -> dict[str, Any]:
        return {"page": {"words": ask.value[:SEARCH_LENGTH].strip(), "shown": CHUNK}}

    def _more(self, ask: Ask, page: dict) -> dict[str, Any]:
        return {"page": {"shown": page["shown"] + CHUNK}}

    def _open_panel(self, ask: Ask, page: dict) -> dict[str, Any]:
        """Open a row's panel; pressed again, it closes."""
        panel = Panel(run=ask.value, kind=ask.do)
        return {"page": {"panel": Panel() if panel == page["panel"] else panel}}

    def _close_panel(self, ask: Ask, page: dict) -> dict[str, Any]:
        return {"page": {"panel": Panel(run=page["panel"].run)}}

    def _ask_again(self, ask: Ask, page: dict) -> dict[str, Any]:
        _, differs = self.context.desk.library.again(ask.value)
        return {"page": {"panel": Panel(run=ask.value, kind="again", differs=differs)}}

    def _start_again(self, ask: Ask, page: dict) -> dict[str, Any]:
        recipe, _ = self.context.desk.library.again(ask.value)
        run = self.context.desk.queue.start(recipe)
        return {"go": "training", "watched": self.training.show(run), "page": {"panel": Panel()}}

    def _queue_again(self, ask: Ask, page: dict) -> dict[str, Any]:
        recipe, _ = self.context.desk.library.again(ask.value)
        item = self.context.desk.queue.add(recipe)
        return {"note": self._good("ui.runs.queued", name=item.name), "page": {"panel": Panel()}}

    def _show(self, ask: Ask, page: dict) -> dict[str, Any]:
        self.context.desk.runs.read(ask.value)  # refuses what is no run
        return {"go": "training", "watched": self.training.show(ask.value)}

    def _talk(self, ask: Ask, page: dict) -> dict[str, Any]:
        return self._show(ask, page) | {"go": f"chat {ask.value}"}

    def _take(self, ask: Ask, page: dict) -> dict[str, Any]:
        return self._show(ask, page) | {"go": f"export {ask.value}"}

    def _resume(self, ask: Ask, page: dict) -> dict[str, Any]:
        self.context.desk.queue.resume(ask.value)
        return {"go": "training", "watched": self.training.show(ask.value)}

    def _duplicate(self, ask: Ask, page: dict) -> dict[str, Any]:
        recipe = self.context.desk.library.duplicate(ask.value)
        self.context.keep_draft(recipe)
        return {"go": "hyperparameters", "fields": self.form.show(recipe)}

    def _rename(self, ask: Ask, page: dict) -> dict[str, Any]:
        name = str(ask.form.get("name", ""))[:NAME_LENGTH].strip()
        self.context.desk.library.rename(ask.value, name)
        self.context.desk.queue.rename(ask.value, name)
        return {"page": {"panel": Panel(run=ask.value)}}

    def _delete(self, ask: Ask, page: dict) -> dict[str, Any]:
        freed_bytes = self.context.desk.library.delete(ask.value)
        note = self._good("ui.runs.deleted", size=size_words(freed_bytes))
        # A comparison on show may hold the run that is gone; its tick goes, which a question answered by no leaves.
        overlay = {"runs": [], "gone": ask.value}
        return {"note": note, "page": {"panel": Panel()}, "overlay": overlay, "differences": ""}

    def _compare(self, ask: Ask, page: dict) -> dict[str, Any]:
        wanted = set(ask.value.split())
        entries = [entry for entry in self.context.desk.library.entries() if entry.record.run in wanted]
        if not FEWEST <= len(entries) <= MOST:
            parts = ("ui.runs.compare.bounds", "ui.runs.compare.bounds.why", "ui.runs.compare.bounds.fix")
            raise StudioError(*(text(part) for part in parts))
        runs = [entry.record.run for entry in entries]
        comparison = self.context.desk.library.compare(runs)
        curves = self.context.desk.library.curves(runs)
        return {
            "overlay": {"runs": [curve_of(entry, curves) for entry in entries]},
            "differences": comparison_card(entries, comparison, self.context.words),
        }

    def _close_comparison(self, ask: Ask, page: dict) -> dict[str, Any]:
        return {"overlay": {"runs": []}, "differences": ""}

    def _import_run(self, ask: Ask, page: dict) -> dict[str, Any]:
        folder = str(ask.form.get("folder", "")).strip().strip('"')
        if not folder:
            parts = ("ui.runs.import.empty", "ui.runs.import.empty.why", "ui.runs.import.empty.fix")
            raise StudioError(*(text(part) for part in parts))
        run = self.context.desk.library.import_run(Path(folder))
        return {"note": self._good("ui.runs.import.done", name=run), "page": {"panel": Panel()}}

    def _order(self, do: str, value: str) -> dict[str, Any]:
        """Change the queue's order, or whether it goes on."""
        desk = self.context.desk
        if do in ("up", "down"):
            desk.queue.move(value, -1 if do == "up" else 1)
        elif do == "drop":
            desk.queue.drop(value)
        elif do == "keep":
            desk.queue.set_keep_going(value == "true")
        elif do == "stop":
            desk.runs.stop(value)
        else:
            desk.queue.hold(do == "hold")
        return {}

    # Inside -------------------------------------------------------------------------------------------------------

    def _answer(self, page: dict, changes: dict[str, Any]) -> list[Any]:
        """The outputs of hear(): the table as it is now, `changes` by name, and the rest as it is."""
        page = page | changes.get("page", {})
        names = ["note", "overlay", "differences", "go", "watched"]
        others = {"note": "", "go": ""} | changes
        answer = [*self.draw(page), *(others.get(name, gr.skip()) for name in names)]
        fields = changes.get("fields") or [gr.skip()] * len(self.form.components)
        return [*answer, *fields]

    def _good(self, id: str, **values: object) -> str:
        return status_note(self.context.say(id, **values), "good")


def curve_of(entry: Any, curves: dict[str, Sequence[tuple]]) -> dict[str, Any]:
    """Return one run's losses for script.js: its id and name, [step, loss] of training and of evaluation."""
    rows = curves.get(entry.record.run, ())
    points = {kind: [list(row[1:3]) for row in rows if row[0] == kind] for kind in ("step", "eval")}
    return {
        "run": entry.record.run,
        "name": run_name(entry.record),
        "loss": points["step"],
        "eval": points["eval"],
    }
