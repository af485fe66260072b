"""The part of the Chat screen that measures a model: a file or held-out rows, metrics, what it is compared with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.metrics import METRICS
from studio.core.recipe import DatasetSpec
from studio.data.questions import QuestionSet, read_questions
from studio.services.demo import HELD_OUT
from studio.services.evaluation_file import render_answers
from studio.services.evaluation_result import BASE, Contender, EvaluationWish
from studio.services.evaluations import CHECKPOINTS
from studio.ui.cards import lead_line, note_card
from studio.ui.context import Context
from studio.ui.shell.html_events import read_said
from studio.ui.tabs.chat.cards import progress_card
from studio.ui.tabs.chat.components import UNTIL_ENTERED
from studio.ui.tabs.chat.evaluation_card import evaluation_card
from studio.ui.tabs.chat.judge import JudgeFields

FILE_TYPES = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".xlsx", ".parquet")
LOOK_EVERY_S = 0.3
SAVED = "(file) => { if (file) window.studio.save(JSON.parse(file)); }"
OFFERED = tuple(metric for metric in METRICS if metric.needs != "judge")
JUDGED = tuple(metric for metric in METRICS if metric.needs == "judge")
"""Measured where a judge is named."""


class EvaluateView:
    """Components and handlers. The test belongs to the desk: a page that comes back sees it again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Column(elem_classes=["sheet"]):
            gr.HTML(lead_line(say("ui.eval.lead")))
            with gr.Row(elem_id="chat-test-form"):
                with gr.Column(scale=3, min_width=240):
                    self.upload = gr.File(
                        label=say("ui.test.upload"), file_types=list(FILE_TYPES), file_count="single", height=96,
                        elem_id="chat-test-file",
                    )  # fmt: skip
                    with gr.Row():
                        self.start = gr.Button(
                            say("ui.eval.start"),
                            elem_id="chat-test-start",
                            variant="primary",
                            size="sm",
                            min_width=90,
                        )
                        self.rows = gr.Button(
                            say("ui.eval.held_out"), elem_id="chat-test-held-out", size="sm", min_width=90
                        )
                        self.demo = gr.Button(
                            say("ui.test.demo"), elem_id="chat-test-demo", size="sm", min_width=90
                        )
                with gr.Column(scale=2, min_width=220):
                    self.metrics = gr.Dropdown(
                        [(say(f"metric.{metric.name}"), metric.name) for metric in OFFERED], value=[], multiselect=True,
                        label=say("ui.eval.metrics"), info=say("ui.eval.metrics.info"), elem_id="chat-test-metrics",
                    )  # fmt: skip
                    self.beside = gr.CheckboxGroup(
                        [(say("ui.eval.beside.base"), BASE), (say("ui.eval.beside.checkpoints"), CHECKPOINTS)],
                        value=[BASE], label=say("ui.eval.beside"), elem_id="chat-test-beside",
                    )  # fmt: skip
                    self.tokens = gr.Number(
                        128, minimum=1, maximum=4096, precision=0, label=say("ui.chat.max_new_tokens"),
                        elem_id="chat-test-tokens",
                    )  # fmt: skip
            self.judge = JudgeFields(context)
            self.result = gr.HTML("", elem_id="chat-test-result")
            with gr.Row():
                self.save = gr.Button(
                    say("ui.test.save"),
                    elem_id="chat-test-save",
                    size="sm",
                    scale=0,
                    min_width=140,
                    visible=False,
                )
                self.save_lines = gr.Button(
                    say("ui.eval.save_lines"), elem_id="chat-test-save-jsonl", size="sm", scale=0, min_width=140,
                    visible=False,
                )  # fmt: skip

    def bind(self, tab: gr.Tab, who: list[Any], voice: gr.HTML, file: gr.Textbox) -> None:
        """`who`: run, checkpoint and system prompt; `voice` says stop; `file` takes what the page saves."""
        on = self.context.on
        shown = [self.result, self.save, self.save_lines]
        wish = [self.upload, self.tokens, self.metrics, self.beside, *who, *self.judge.fields]
        self.judge.bind()
        for button, begin in (
            (self.start, self.begin), (self.rows, self.begin_held_out), (self.demo, self.begin_demo)
        ):  # fmt: skip
            on(button.click(None, js=UNTIL_ENTERED).then, begin, wish, shown)
        on(tab.select, self.watch, [], shown)
        on(voice.said, self.hear, [voice], trigger_mode="multiple")
        for button, write in ((self.save, self.write), (self.save_lines, self.write_lines)):
            on(button.click, write, [], [file]).then(None, [file], js=SAVED)

    def begin(self, upload: str | None, *wish: Any) -> Iterator[list[Any]]:
        """Start with the uploaded file and yield how it goes."""
        if not upload:
            raise StudioError(
                text("ui.test.no_file"), text("ui.test.no_file.why"), text("ui.test.no_file.fix")
            )
        questions = read_questions(DatasetSpec(source=upload))  # a file that cannot be read is said at once
        yield from self._begin(lambda: questions, *wish)

    def begin_demo(self, upload: str | None, *wish: Any) -> Iterator[list[Any]]:
        """Start with the demo's questions that no run has seen, and yield how it goes."""
        yield from self._begin(lambda: read_questions(DatasetSpec(source=str(HELD_OUT))), *wish)

    def begin_held_out(self, upload: str | None, *wish: Any) -> Iterator[list[Any]]:
        """Start with the rows that the chosen run held out, and yield how it goes."""
        run = wish[3]
        if not run:
            raise StudioError(
                text("eval.no_held_out"), text("eval.no_held_out.base"), text("eval.no_held_out.fix")
            )
        yield from self._begin(lambda: self.context.desk.evaluations.held_out(run), *wish)

    def _begin(
        self,
        read: Callable[[], QuestionSet],
        tokens: float,
        metrics: Sequence[str],
        beside: Sequence[str],
        run: str | None,
        place: str,
        system: str,
        *judge: Any,
    ) -> Iterator[list[Any]]:
        if run is None:
            raise StudioError(text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix"))
        desk = self.context.desk
        desk.chat.refuse_while_training()
        if run:
            step = int(place.removeprefix("step-")) if place else 0
            contenders = desk.evaluations.contenders(
                run, [one for one in (BASE, CHECKPOINTS) if one in beside], step
            )
        else:
            contenders = (Contender(BASE, "", side=BASE, recipe=self.context.draft()),)
        judged = self.judge.read(*judge) if judge else None
        chosen = tuple(metric for metric in OFFERED if metric.name in metrics)
        wish = EvaluationWish(
            metrics=(*chosen, *JUDGED) if chosen and judged is not None else chosen,
            judge=judged,
            system=system or "",
            max_new_tokens=max(1, min(4096, int(tokens or 128))),
        )
        desk.evaluations.start(read, contenders, wish)
        yield from self.watch()

    def watch(self) -> Iterator[list[Any]]:
        """Yield how the last test goes, until it ends; nothing when there was none."""
        job = self.context.desk.chat.test
        if job is None:
            yield [gr.skip()] * 3  # a generator without any would empty all
            return
        say, told, hidden = self.context.say, None, [gr.update(visible=False)] * 2
        while not job.ended:
            now = (job.phase, job.done, job.total)
            if now != told:
                told = now
                phase = say(job.phase) if job.phase is not None else say("ui.chat.waiting")
                yield [progress_card(phase, job.done, job.total, say, stop="stop-test"), *hidden]
            time.sleep(LOOK_EVERY_S)
        if job.error is not None:
            yield [note_card(self.context.say_error(job.error), "bad"), *hidden]
        else:
            yield [evaluation_card(job.result(), say), *[gr.update(visible=True)] * 2]

    def hear(self, said: object) -> None:
        """Stop the test when its card's button says so."""
        job = self.context.desk.chat.test
        if read_said(said)[0] == "stop-test" and job is not None:
            job.stop()

    def write(self) -> str:
        """Return the last rows as a CSV file to save."""
        return self._write(".csv")

    def write_lines(self) -> str:
        """Return the last rows as a file of JSON lines to save."""
        return self._write(".jsonl")

    def _write(self, suffix: str) -> str:
        job = self.context.desk.chat.test
        if job is None or not job.ended or job.error is not None:
            raise StudioError(
                text("ui.test.no_file"), text("ui.test.no_file.why"), text("ui.test.no_file.fix")
            )
        found = job.result()
        name = f"{Path(found.questions.name).stem}-{found.sides[0].contender.run or BASE}{suffix}"
        content = render_answers(found, self.context.words, suffix).decode("utf-8")
        return json.dumps({"name": name, "text": content})
