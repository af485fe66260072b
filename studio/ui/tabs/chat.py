"""The Chat tab: the same question to the model before and after training, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.text import text
from studio.ui.cards import chat_card, run_label
from studio.ui.context import Context

SIDES = ("base", "tuned")


class ChatTab:
    """Components and handlers; each side keeps its own conversation."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Column(elem_classes=["sheet"]):
            gr.HTML(f"<h2>{say('ui.chat.title')}</h2><p class='lead'>{say('ui.chat.lead')}</p>")
            with gr.Row():
                self.run = gr.Dropdown(
                    choices=[],
                    label=say("ui.chat.run"),
                    elem_id="chat-run",
                    filterable=False,
                    interactive=True,
                    scale=3,
                )
                self.tokens = gr.Number(
                    128, label=say("ui.chat.max_new_tokens"), precision=0, elem_id="chat-max-new-tokens"
                )
                self.temperature = gr.Number(
                    0.0, label=say("ui.chat.temperature"), step=0.1, elem_id="chat-temperature"
                )
                self.seed = gr.Number(0, label=say("ui.chat.seed"), precision=0, elem_id="chat-seed")
        with gr.Row(equal_height=True):
            self.base = gr.HTML(self._card("base", []), elem_id="chat-base")
            self.tuned = gr.HTML(self._card("tuned", []), elem_id="chat-tuned")
        with gr.Row(elem_classes=["toolbar"]):
            self.input = gr.Textbox(
                placeholder=say("ui.chat.placeholder"), show_label=False, elem_id="chat-input", scale=8, max_lines=6,
                label=say("ui.chat.placeholder"),
            )  # fmt: skip
            self.send = gr.Button(
                say("ui.chat.send"), elem_id="chat-send", variant="primary", scale=0, min_width=110
            )
            self.clear = gr.Button(say("ui.chat.clear"), elem_id="chat-clear", scale=0, min_width=110)
        self.talk = gr.State({"base": [], "tuned": []})

    def bind(self, tab: gr.Tab) -> None:
        """Send on the button and on Enter; opening the tab looks for runs to talk to."""
        on = self.context.on
        inputs = [self.run, self.input, self.talk, self.tokens, self.temperature, self.seed]
        outputs = [self.input, self.base, self.tuned, self.talk]
        for event in (self.send.click, self.input.submit):
            on(event, self.answer, inputs, outputs, concurrency_limit=1, concurrency_id="chat")
        on(tab.select, self.choices, [self.run], [self.run])
        on(self.clear.click, self.forget, [], [self.base, self.tuned, self.talk])
        on(self.run.input, self.forget, [], [self.base, self.tuned, self.talk])

    def choices(self, run: str | None) -> dict:
        """Return the picker with the runs that have a result, the newest chosen."""
        records = [record for record in self.context.desk.runs() if record.state == "finished"]
        names = [(run_label(record, self.context.say), record.run) for record in records]
        known = [value for _, value in names]
        return gr.update(choices=names, value=run if run in known else (known[0] if known else None))

    def answer(
        self, run: str, question: str, talk: dict, tokens: float, temperature: float, seed: float
    ) -> Iterator[list[Any]]:
        """Yield both conversations as the answers grow, the base model's first: one accelerator, one answer."""
        if not run:
            raise StudioError(text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix"))
        if not (question or "").strip():
            return
        asked = {side: [*talk[side], {"role": "user", "content": question.strip()}] for side in SIDES}
        shown = dict(asked)
        for side in SIDES:
            pieces = self.context.desk.chat(
                run,
                asked[side],
                side=side,
                max_new_tokens=int(tokens or 128),
                temperature=float(temperature or 0.0),
                seed=int(seed or 0),
            )
            shown[side] = [*asked[side], {"role": "assistant", "content": ""}]
            yield self._cards("", shown)
            for words in pieces:
                shown[side] = [*asked[side], {"role": "assistant", "content": words}]
                yield self._cards("", shown)
        yield self._cards("", shown)

    def forget(self) -> list[Any]:
        """Return both conversations empty."""
        return self._cards("", {"base": [], "tuned": []})[1:]

    def _cards(self, question: str, talk: dict) -> list[Any]:
        return [question, self._card("base", talk["base"]), self._card("tuned", talk["tuned"]), talk]

    def _card(self, side: str, messages: list[dict]) -> str:
        return chat_card(
            self.context.say(f"ui.chat.{side}"), messages, self.context.say(f"ui.chat.{side}.empty")
        )
