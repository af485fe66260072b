"""Messages as the turns that one template takes: what it reads of thoughts and of tool calls is found out by trying."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from studio.data.conversation import Message, ToolCall
from studio.data.template import ChatTemplate
from studio.data.template_sandbox import TOOLS

THOUGHTS = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
"""The thoughts that stand in front of an answer, where a file does not keep them apart."""
UNOPENED = re.compile(r"\s*((?:(?!<think>).)*?)</think>\s*", re.DOTALL)
"""The same where `<think>` belongs to the prompt, as reasoning models write their answers."""
ID_CHARACTERS = 9
"""Mistral's templates take no other ids of tool calls."""
WORD, THOUGHT, CITY = "Q7xWordZ9k", "Q7xThoughtZ9k", "Q7xCityZ9k"


class TurnWriter:
    """Writes messages as the turns of one template."""

    def __init__(self, template: ChatTemplate, *, keep_reasoning: bool = True, thinks: bool = False) -> None:
        """`thinks`: whether the tokenizer has a word of its own for thoughts."""
        self.template = template
        self.keep_reasoning = keep_reasoning
        self.reasoning = self._find_reasoning(thinks)
        """`field`: the template reads reasoning_content; `front`: it stands in front of the answer; `out`: nowhere."""
        self._calls: tuple[bool, bool] | None = None

    def settle(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], bool]:
        """Return the messages with their thoughts where the template takes them, and whether thoughts are left out."""
        settled, lost = [], False
        for message in messages:
            if message.role == "assistant" and (message.reasoning or "</think>" in message.content):
                message, left_out = self._settle(message)
                lost |= left_out
            settled.append(message)
        return tuple(settled), lost

    def _settle(self, message: Message) -> tuple[Message, bool]:
        thoughts, words = message.reasoning, message.content
        found = None if thoughts else THOUGHTS.match(words)
        if not self.keep_reasoning:
            return message._replace(reasoning="", content=words[found.end() :] if found else words), False
        if self.reasoning == "field":
            # Such templates part an answer at `</think>` whether or not `<think>` stands in front.
            found = found or (None if thoughts else UNOPENED.match(words))
            if found and found[1].strip():
                return message._replace(reasoning=found[1].strip("\n"), content=words[found.end() :]), False
            return message, False
        if not thoughts:
            return message, False
        if self.reasoning == "front":
            words = f"<think>\n{thoughts.strip()}\n</think>\n\n{words}"
        return message._replace(reasoning="", content=words), self.reasoning == "out"

    def write(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the turns; `messages` are settled."""
        if any(message.tool_calls for message in messages) and self._calls is None:
            self._calls = self._find_calls()
        turns = []
        waiting: list[tuple[str, str]] = []
        for number, message in enumerate(messages):
            turn: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.reasoning:
                turn["reasoning_content"] = turn["thinking"] = message.reasoning
            if message.name:
                turn["name"] = message.name
            if message.tool_calls:
                turn["tool_calls"] = [
                    self._write_call(call, f"{number} {place}")
                    for place, call in enumerate(message.tool_calls)
                ]
                waiting = [(call["id"], call["function"]["name"]) for call in turn["tool_calls"]]
            elif message.role == "tool":
                known = message.call_id and self._fit_id(message.call_id)
                match = next((one for one in waiting if known in ("", one[0])), None)
                if match is not None:
                    waiting.remove(match)
                turn["tool_call_id"] = known or (match[0] if match else "")
                turn["name"] = message.name or (match[1] if match else "")
            turns.append(turn)
        return turns

    def _write_call(self, call: ToolCall, place: str) -> dict[str, Any]:
        as_text = self._calls is not None and self._calls[0]
        arguments = dict(call.arguments)
        return {
            "type": "function",
            "id": self._fit_id(call.id or place),
            "function": {
                "name": call.name,
                "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments,
            },
        }

    def _fit_id(self, name: str) -> str:
        short = self._calls is not None and self._calls[1]
        if not short or (len(name) == ID_CHARACTERS and name.isalnum()):
            return name
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARACTERS]

    def _find_reasoning(self, thinks: bool) -> str:
        question = {"role": "user", "content": "ask"}
        answer = {"role": "assistant", "content": WORD, "reasoning_content": THOUGHT, "thinking": THOUGHT}
        if THOUGHT in (self.template.try_render([question, answer]) or ""):
            return "field"
        answer = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{WORD}"}
        keeps = THOUGHT in (self.template.try_render([question, answer]) or "")
        return "front" if keeps and (thinks or "think>" in self.template.source) else "out"

    def _find_calls(self) -> tuple[bool, bool]:
        """Return how the template takes tool calls: (arguments as JSON text, ids of nine characters)."""
        messages = (
            Message("user", "ask"),
            Message("assistant", "", tool_calls=(ToolCall("find_weather", {"city": CITY}, "call_1"),)),
            Message("tool", "rain", call_id="call_1"),
            Message("assistant", "say"),
        )
        for tools in (TOOLS, ()):
            for self._calls in ((False, False), (True, False), (False, True), (True, True)):
                words = self.template.try_render(self.write(messages), tools)
                # Where 'city' stands in single quotes, Python's own notation got into the text.
                if words is not None and CITY in words and f"'city': '{CITY}'" not in words:
                    return self._calls
        return False, False
