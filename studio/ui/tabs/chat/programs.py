"""The part of the Chat screen that lets other programs ask the chosen model: a switch, an address, a key, examples."""

from __future__ import annotations

import json
import os
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.services.chat_service import say_place
from studio.ui.cards import lead_line
from studio.ui.completions.switch import OpenAddress
from studio.ui.context import Context
from studio.ui.shell.html_events import read_said
from studio.ui.templates import render


class ProgramAddress:
    """Components and handlers. The address belongs to the studio: every page shows the same."""

    def __init__(self, context: Context) -> None:
        self.context = context
        with gr.Column(elem_classes=["sheet"]):
            gr.HTML(lead_line(context.say("ui.address.lead")))
            self.card = gr.HTML("", elem_id="chat-address")

    def bind(self, tab: gr.Tab, run: Any, place: Any, voice: gr.HTML) -> None:
        """`run` and `place`: who was chosen; `voice` says what a button does."""
        on = self.context.on
        on(tab.select, self.show, [], [self.card])
        on(voice.said, self.hear, [voice, run, place], [self.card], trigger_mode="multiple")

    def show(self) -> str:
        """Return the card as things are."""
        found, say = self.context.address.open, self.context.say
        named = ""
        if found is not None and found.run:
            record = self.context.desk.runs.read(found.run)
            step = int(found.checkpoint.rpartition("-")[2]) if found.checkpoint else record.steps
            named = f"{record.name} · {say(say_place(found.checkpoint, step))}"
        examples = [] if found is None else write_examples(found)
        return render("tabs/chat/address.html", say, address=found, named=named, examples=examples)

    def hear(self, said: object, run: str | None, place: str | None) -> Any:
        """Switch on for the chosen model, or off."""
        do, _, _ = read_said(said)
        if do == "address-on":
            if run is None:
                raise StudioError(
                    text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix")
                )
            self.context.address.on(run, place or "", None if run else self.context.draft())
        elif do == "address-off":
            self.context.address.off()
        elif do != "unload":
            return gr.skip()
        return self.show()


def write_examples(address: OpenAddress) -> list[tuple[str, str]]:
    """Return how one asks: the name of a program and the words, ready to be run."""
    body = {"model": address.model, "messages": [{"role": "user", "content": "Hello"}]}
    asked = json.dumps(body)
    parts = [
        f"curl {address.url}/chat/completions",
        f'-H "Authorization: Bearer {address.key}"',
        '-H "Content-Type: application/json"',
        f"-d '{asked}'",
    ]
    curl = " \\\n  ".join(parts)
    if os.name == "nt":  # its shells know no single quotes, and one of them another curl
        quoted = asked.replace('"', '\\"')
        curl = " ".join([parts[0].replace("curl", "curl.exe", 1), *parts[1:3], f'-d "{quoted}"'])
    python = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{address.url}", api_key="{address.key}")\n'
        "answer = client.chat.completions.create(\n"
        f"    model={json.dumps(address.model)}, messages={json.dumps(body['messages'])}\n"
        ")\n"
        "print(answer.choices[0].message.content)"
    )
    return [("curl", curl), ("Python", python)]
