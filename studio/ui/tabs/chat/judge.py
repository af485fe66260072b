"""Who judges the answers of an evaluation, by mouse: a model at an address or of this machine, and a written rubric.

Only the owner's window has these fields, and their handlers are the owner's: guests name no address. The key is taken
from the field into memory for one evaluation; no file holds it, and no page is told it.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.hub.chat_client import ChatClient
from studio.services.evaluation_result import AnswerJudge
from studio.services.judges import RUBRIC_BYTES, AddressJudge, LocalJudge
from studio.ui.cards import run_label
from studio.ui.context import Context

NOBODY, REMOTE, LOCAL = "none", "address", "local"
RUBRIC_LINES = 4


class JudgeFields:
    """Components; what stands in them is read when an evaluation begins."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        with gr.Accordion(say("ui.eval.judge"), open=False, elem_id="chat-test-judge"):
            self.kind = gr.Radio(
                [(say(f"ui.eval.judge.{one}"), one) for one in (NOBODY, REMOTE, LOCAL)], value=NOBODY,
                label=say("ui.eval.judge.who"), info=say("ui.eval.judge.who.info"), elem_id="chat-test-judge-kind",
            )  # fmt: skip
            with gr.Row(visible=False) as self.remote:
                self.address = gr.Textbox(
                    label=say("ui.eval.judge.at"), info=say("ui.eval.judge.at.info"),
                    placeholder="http://127.0.0.1:8080/v1", max_lines=1, elem_id="chat-test-judge-address",
                )  # fmt: skip
                self.model = gr.Textbox(
                    label=say("ui.eval.judge.model"), info=say("ui.eval.judge.model.info"), max_lines=1,
                    elem_id="chat-test-judge-model",
                )  # fmt: skip
                self.key = gr.Textbox(
                    label=say("ui.eval.judge.key"), info=say("ui.eval.judge.key.info"), type="password", max_lines=1,
                    elem_id="chat-test-judge-key", html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
                )  # fmt: skip
            self.local = gr.Dropdown(
                [], value=None, allow_custom_value=True, visible=False, label=say("ui.eval.judge.local.label"),
                info=say("ui.eval.judge.local.info"), elem_id="chat-test-judge-local",
            )  # fmt: skip
            self.rubric = gr.Textbox(
                visible=False, lines=RUBRIC_LINES, max_lines=3 * RUBRIC_LINES, label=say("ui.eval.judge.rubric"),
                info=say("ui.eval.judge.rubric.info"), placeholder=say("ui.eval.judge.rubric.example"),
                elem_id="chat-test-judge-rubric",
            )  # fmt: skip

    @property
    def fields(self) -> list[Any]:
        """What read() takes, in its order."""
        return [self.kind, self.address, self.model, self.key, self.local, self.rubric]

    def bind(self) -> None:
        """Show the fields of who is chosen."""
        self.context.on(self.kind.input, self.choose, [self.kind], [self.remote, self.local, self.rubric])

    def choose(self, kind: str) -> list[Any]:
        """Return which fields are there, and the runs that can judge."""
        runs = self._list_runs() if kind == LOCAL else []
        return [
            gr.update(visible=kind == REMOTE),
            gr.update(visible=kind == LOCAL, choices=runs),
            gr.update(visible=kind in (REMOTE, LOCAL)),
        ]

    def read(
        self,
        kind: str,
        address: str | None,
        model: str | None,
        key: str | None,
        local: str | None,
        rubric: str | None,
    ) -> AnswerJudge | None:
        """Return who judges; None for nobody. Raises StudioError, also where an address does not answer."""
        if kind not in (REMOTE, LOCAL):
            return None
        who = ((address if kind == REMOTE else local) or "").strip()
        words = (rubric or "").strip()
        if not (who and words) or len(words.encode()) > RUBRIC_BYTES:
            raise StudioError(*(text(f"ui.eval.judge.missing{part}") for part in ("", ".why", ".fix")))
        if kind == REMOTE:
            return AddressJudge(ChatClient(who, (model or "").strip(), key or ""), words)
        desk = self.context.desk
        return LocalJudge(desk.chat, desk.evaluations.contenders(who)[0], words)

    def _list_runs(self) -> list[tuple[str, str]]:
        desk = self.context.desk
        found = [one.record for one in desk.chat.choices(desk.runs.list())]
        return [(run_label(record, self.context.say), record.run) for record in found]
