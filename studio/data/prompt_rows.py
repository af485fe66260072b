"""The rows behind a run's examples, for objectives that ask the model: what is asked, and what else a row says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.data.conversation import Conversation
from studio.data.examples import JoinedExamples
from studio.data.shards import Shards


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One question as rewards see it."""

    messages: tuple[Mapping[str, Any], ...]
    """All turns before the answer: role, content."""
    columns: Mapping[str, Any]
    """The row's other columns by their names; of a chat its own answer, as `answer`."""


class PromptRows:
    """The rows of examples by the examples' numbers, read from disk when they are asked for."""

    def __init__(self, examples: JoinedExamples, shards: Sequence[Shards], system_prompt: str) -> None:
        """`shards`: the converted rows of each of the examples' parts."""
        self._examples, self._shards, self._system_prompt = examples, shards, system_prompt

    def __len__(self) -> int:
        return len(self._examples)

    def read(self, i: int) -> PromptRow:
        """Return the row of example `i`."""
        examples = self._examples
        part, place = int(examples.part[i]), int(examples.place[i])
        one = examples.parts[part]
        row = int(one.tokens.rows[one.chosen[place]])
        conversation: Conversation = next(iter(self._shards[part].read([row])))[1]
        asked = conversation.with_system(self._system_prompt).as_prompt()
        return PromptRow(tuple(turn.to_dict() for turn in asked.messages), asked.extras)
