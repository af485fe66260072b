"""The part of the Chat screen that asks a whole file of questions: upload, progress, the table of both sides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import DatasetSpec
from studio.data.questions import read_questions
from studio.services.demo import HELD_OUT
from studio.services.eval_table import write_csv
from studio.ui.cards import lead_line, note_card
from studio.ui.context import Context
from studio.ui.shell.html_events import read_said
from studio.ui.tabs.chat.cards import progress_card, table_card
from studio.ui.tabs.chat.components import UNTIL_ENTERED

FILE_TYPES = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".xlsx", ".parquet")
LOOK_EVERY_S = 0.3


class QuestionFile:
    """Components and handlers. The test belongs to the desk: a page that comes back sees it again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Column(elem_classes=["sheet"]):
            gr.HTML(lead_line(say("ui.test.lead")))
            with gr.Row(elem_id="chat-test-form"):
                self.upload = gr.File(
                    label=say("ui.test.upload"), file_types=list(FILE_TYPES), file_count="single", height=96,
                    elem_id="chat-test-file", scale=3, min_width=240,
                )  # fmt: skip
                with gr.Column(scale=2, min_width=220):
                    self.tokens = gr.Number(
                        64, minimum=1, maximum=4096, precision=0, label=say("ui.chat.max_new_tokens"),
                        elem_id="chat-test-tokens",
                    )  # fmt: skip
                    with gr.Row():
                        self.start = gr.Button(
                            say("ui.test.start"), elem_id="chat-test-start", variant="primary", size="sm",
                            min_width=90,
                        )  # fmt: skip
                        self.demo = gr.Button(
                            say("ui.test.demo"), elem_id="chat-test-demo", size="sm", min_width=90
                        )
            self.result = gr.HTML("", elem_id="chat-test-result")
            self.save = gr.Button(
                say("ui.test.save"),
                elem_id="chat-test-save",
                size="sm",
                scale=0,
                min_width=140,
                visible=False,
            )

    def bind(self, tab: gr.Tab, who: list[Any], voice: gr.HTML, file: gr.Textbox) -> None:
        """`who`: run, checkpoint, sides and system prompt; `voice` says stop; `file` takes what the page saves."""
        on = self.context.on
        shown = [self.result, self.save]
        for button, begin in ((self.start, self.begin), (self.demo, self.begin_demo)):
            on(button.click(None, js=UNTIL_ENTERED).then, begin, [self.upload, self.tokens, *who], shown)
        on(tab.select, self.watch, [], shown)
        on(voice.said, self.hear, [voice], trigger_mode="multiple")
        saved = on(self.save.click, self.write, [], [file])
        saved.then(None, [file], js="(file) => { if (file) window.studio.save(JSON.parse(file)); }")

    def begin(
        self, upload: str | None, tokens: float, run: str, place: str, sides: str, system: str
    ) -> Iterator[list[Any]]:
        """Start a test with the uploaded file and yield how it goes."""
        if not upload:
            raise StudioError(
                text("ui.test.no_file"), text("ui.test.no_file.why"), text("ui.test.no_file.fix")
            )
        yield from self._begin(Path(upload), tokens, run, place, sides, system)

    def begin_demo(
        self, upload: str | None, tokens: float, run: str, place: str, sides: str, system: str
    ) -> Iterator[list[Any]]:
        """Start a test with the demo's questions that no run has seen, and yield how it goes."""
        yield from self._begin(HELD_OUT, tokens, run, place, sides, system)

    def _begin(
        self, path: Path, tokens: float, run: str, place: str, sides: str, system: str
    ) -> Iterator[list[Any]]:
        if run is None:
            raise StudioError(text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix"))
        talks = self.context.desk.chat
        talks.refuse_while_training()
        talks.start_test(
            read_questions(DatasetSpec(source=str(path))),
            run=run,
            checkpoint=place or "",
            recipe=None if run else self.context.draft(),
            sides=("base", "tuned") if sides == "both" else (sides,),
            system=system or "",
            max_new_tokens=max(1, min(4096, int(tokens or 64))),
        )
        yield from self.watch()

    def watch(self) -> Iterator[list[Any]]:
        """Yield how the last test goes, until it ends; nothing when there was none."""
        job = self.context.desk.chat.test
        if job is None:
            yield [gr.skip(), gr.skip()]  # a generator without any would empty both
            return
        say, told = self.context.say, None
        while not job.ended:
            now = (job.phase, job.done, job.total)
            if now != told:
                told = now
                phase = say(job.phase) if job.phase is not None else say("ui.chat.waiting")
                yield [
                    progress_card(phase, job.done, job.total, say, stop="stop-test"),
                    gr.update(visible=False),
                ]
            time.sleep(LOOK_EVERY_S)
        if job.error is not None:
            yield [note_card(self.context.say_error(job.error), "bad"), gr.update(visible=False)]
        else:
            yield [table_card(job.result(), say), gr.update(visible=True)]

    def hear(self, said: object) -> None:
        """Stop the test when its card's button says so."""
        job = self.context.desk.chat.test
        if read_said(said)[0] == "stop-test" and job is not None:
            job.stop()

    def write(self) -> str:
        """Return the last table as a CSV file to save."""
        job, say = self.context.desk.chat.test, self.context.say
        if job is None or not job.ended or job.error is not None:
            raise StudioError(
                text("ui.test.no_file"), text("ui.test.no_file.why"), text("ui.test.no_file.fix")
            )
        table = job.result()
        headings = {name: say(f"ui.test.{name}") for name in ("number", "prompt", "expected")}
        for side in table.totals:
            headings[side] = say(f"ui.chat.{side}")
            for part in ("exact", "alike", "loss"):
                headings[f"{side}_{part}"] = f"{say(f'ui.chat.{side}')}: {say(f'ui.test.{part}')}"
        name = f"{Path(table.name).stem}-{table.run or 'base'}.csv"
        return json.dumps({"name": name, "text": write_csv(table, headings)})
