"""What all conversations of one shape have in common: the template's own text, with slots for their contents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from studio.data.conversation import Message

MARKER = "Q7x{:04d}{}AnswerStandsHereZ9k"
"""Letters and digits only, so that no template trims, escapes or splits it; all of one length."""
CONTENT, REASONING = "C", "R"
Span = tuple[int, int]
"""(first, one past the last) character."""
Tools = Sequence[Mapping[str, Any]]


class Slot(NamedTuple):
    """Where a content stands in a text."""

    start: int
    end: int
    message: int
    """Number of the message, from 0."""
    part: str
    """CONTENT or REASONING."""


class Edge(NamedTuple):
    """A place in a Skeleton: `offset` characters into stretch number `stretch`."""

    stretch: int
    offset: int


class Skeleton(NamedTuple):
    """The text of all conversations of one shape: stretches with slots between them."""

    stretches: tuple[str, ...]
    slots: tuple[tuple[int, str], ...]
    """(message, part) of each slot; one fewer than stretches."""
    answers: Mapping[int, tuple[Edge, Edge]]
    """The edges of each answer, by the number of its message."""
    lost: frozenset[str]
    """What the template leaves out: `system`, `reasoning`."""


def match(skeleton: Skeleton, full: str, messages: Sequence[Message]) -> dict[int, Span] | None:
    """Return where each answer stands in `full`; None unless `full` is `skeleton` with the contents of `messages`."""
    starts = []
    position = 0
    stretches = skeleton.stretches
    for number, (i, part) in enumerate(skeleton.slots):
        starts.append(position)
        if not full.startswith(stretches[number], position):
            return None
        position += len(stretches[number])
        message = messages[i]
        words = message.content if part == CONTENT else message.reasoning
        following = stretches[number + 1]
        if full.startswith(words, position) and full.startswith(following, position + len(words)):
            position += len(words)
            continue
        for other in _spellings(words):
            if full.startswith(other, position) and full.startswith(following, position + len(other)):
                position += len(other)
                break
        else:
            return None
    starts.append(position)
    if full[position:] != stretches[-1]:
        return None
    return {
        i: (starts[first.stretch] + first.offset, starts[last.stretch] + last.offset)
        for i, (first, last) in skeleton.answers.items()
    }


def shape_of(messages: Sequence[Message], tools: Tools) -> object | None:
    """Return what conversations with one Skeleton have in common; None where each has its own: with tool calls."""
    shape: list[object] = []
    for message in messages:
        if message.tool_calls or message.role == "tool":
            return None
        shape.append((message.role, message.name, not message.content, not message.reasoning))
    if tools:
        shape.append(json.dumps(tools, sort_keys=True, default=str))
    return tuple(shape)


def _spellings(words: str) -> Iterator[str]:
    """Yield how templates write `words` otherwise: trimmed, or escaped as JSON."""
    yield words.strip()
    yield words.strip("\n")
    yield words.lstrip("\n")
    yield words.lstrip()
    yield words.rstrip()
    yield json.dumps(words, ensure_ascii=False)[1:-1]
    yield json.dumps(words)[1:-1]


def mark(message: Message, i: int) -> Message:
    """Return message number `i` with markers in place of its contents."""
    return message._replace(
        content=message.content and MARKER.format(i, CONTENT),
        reasoning=message.reasoning and MARKER.format(i, REASONING),
    )


def find_slots(full: str, marked: Sequence[Message | None]) -> Iterator[Slot]:
    """Yield where the markers of `marked` stand in `full`."""
    for i, message in enumerate(marked):
        if message is None:
            continue
        for part, marker in ((CONTENT, message.content), (REASONING, message.reasoning)):
            place = full.find(marker) if marker else -1
            while place >= 0:
                yield Slot(place, place + len(marker), i, part)
                place = full.find(marker, place + 1)


def to_edge(place: int, edges: Sequence[int]) -> Edge | None:
    """Return `place` as an Edge; None when it lies inside a slot. `edges`: start and end of each stretch in turn."""
    for number in range(len(edges) // 2):
        if edges[2 * number] <= place <= edges[2 * number + 1]:
            return Edge(number, place - edges[2 * number])
    return None
