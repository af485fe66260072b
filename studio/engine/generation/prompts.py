"""From what is asked to what the model reads: template, tools, limits; and each answer's talk with who asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.data.conversation import read_message
from studio.data.deadline import Deadline
from studio.data.template import TEMPLATE_ERRORS, compile_like
from studio.data.template_turns import TurnWriter
from studio.engine.generation.answer_request import AnswerRequest
from studio.engine.generation.json_grammar import JsonGrammars, compile_schema
from studio.engine.generation.request import Completion, Request
from studio.engine.generation.text_stream import Answer, TextStream
from studio.engine.generation.tool_calls import CallForm, find_form
from studio.engine.stop_tokens import Ends
from studio.models.tokenizer import last_line

Tools = Sequence[Mapping[str, Any]]


class PromptWriter:
    """Writes prompts for one tokenizer and its template."""

    def __init__(self, tokenizer: Any, ends: Ends) -> None:
        self.tokenizer = tokenizer
        self._ends = ends
        self._grammars = JsonGrammars(tokenizer, ends.ids)
        self._writers: dict[bool, TurnWriter] = {}
        self._form: CallForm | None = None

    def begin(self, ask: AnswerRequest, limit: int) -> Talk:
        """Return the talk of an ask. `limit`: tokens that prompt and answer may have together, 0 for any number.

        Raises StudioError when it does not fit the model, its template, or what can be kept to.
        """
        form = self._read_form() if ask.tools else None
        grammar, front = ask.grammar, ""
        if ask.called:
            wanted = [tool for tool in ask.tools if tool["function"]["name"] in ask.called]
            grammar, front = compile_schema(form.schema(wanted)), form.before
        ids = self.read_ids(ask, limit, front)
        constraint = self._grammars.constrain(grammar) if grammar else None
        room = limit - len(ids) if limit else ask.sampling.max_new_tokens
        sampling = dataclasses.replace(
            ask.sampling, max_new_tokens=max(1, min(ask.sampling.max_new_tokens, room))
        )
        completion = Completion(Request(tuple(ids), sampling, ask.likeliest), constraint)
        return Talk(ask, completion, self.tokenizer, self._ends, form, form.mark if front else "")

    def read_ids(self, ask: AnswerRequest, limit: int, front: str = "") -> list[int]:
        """Return the prompt's token ids; `front`: how the answer is made to begin. Raises StudioError."""
        if not ask.messages:
            words, bare = ask.words + front, True
        elif self.tokenizer.chat_template:
            words, bare = self._render(ask.messages, ask.tools) + front, False
        else:
            words, bare = ask.messages[-1]["content"] + front, True
        ids = self.tokenizer(words, add_special_tokens=bare)["input_ids"]
        if not ids:
            raise StudioError(text("chat.empty"), text("chat.empty.why"), text("chat.empty.fix"))
        if limit and len(ids) >= limit:
            raise StudioError(
                text("chat.too_long", tokens=len(ids)),
                text("chat.too_long.why", limit=limit),
                text("chat.too_long.fix"),
            )
        return ids

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> str:
        turns = [dict(message) for message in messages]
        if tools or any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns):
            turns = self._writer(bool(tools)).write([read_message(turn) for turn in turns])
        try:
            with Deadline() as deadline:
                deadline.begin(0)
                return self.tokenizer.apply_chat_template(
                    turns, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
                )
        except TEMPLATE_ERRORS as error:
            raise StudioError(
                text("chat.template"), literal(last_line(error)), text("chat.template.fix")
            ) from error

    def _writer(self, tools: bool) -> TurnWriter:
        if tools not in self._writers:
            source = self.tokenizer.get_chat_template(tools=[{}] if tools else None)
            self._writers[tools] = TurnWriter(compile_like(self.tokenizer, source))
        return self._writers[tools]

    def _read_form(self) -> CallForm:
        """Return how the template writes calls. Raises StudioError where it takes no tools."""
        if self._form is None:
            if not self.tokenizer.chat_template:
                raise StudioError(
                    text("answers.no_tools"), text("answers.no_tools.why"), text("answers.no_tools.fix")
                )
            writer = self._writer(True)
            self._form = find_form(writer.template, writer, self._show)
        return self._form

    def _show(self, words: str) -> str:
        ids = self.tokenizer(words, add_special_tokens=False)["input_ids"]
        return self.tokenizer.decode(ids, skip_special_tokens=True)


@dataclass(slots=True, eq=False)
class Talk:
    """One ask, its answer as it grows, and what of it is told."""

    ask: AnswerRequest
    completion: Completion
    tokenizer: Any
    ends: Ends
    form: CallForm | None
    front: str
    """How the answer was made to begin."""
    stream: TextStream = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.stream = TextStream(self.tokenizer, self._tell, self.ends, self.ask.stop)

    def grow(self) -> None:
        """Hear that there is a token more."""
        self.stream.grow(self.completion)

    def look(self) -> bool:
        """Return whether the answer has ended, by itself or as whoever asked is gone; then it was told."""
        if self.completion.reason is None and not self.ask.should_stop():
            return False
        self.completion.reason = self.completion.reason or "stopped"
        if self.completion.reason == "room":
            self.ask.end(
                StudioError(
                    text("chat.memory"), text("chat.memory.why"), text("chat.memory.fix"), exit_code=1
                )
            )
        else:
            self.stream.end(self.completion)
            self.ask.end()
        return True

    def _tell(self, answer: Answer) -> None:
        if self.form is not None and answer.reason is None:
            answer = dataclasses.replace(answer, words="" if self.front else self.form.hold(answer.words))
        elif self.form is not None:
            words, calls = self.form.read(self.front + answer.words, self.ask.tools)
            answer = dataclasses.replace(answer, words=words, calls=calls)
        self.ask.tell(answer)
