"""Where in the text of a conversation its answers stand: from the end of their prompt to the end of their turn.

The structure is found on a *skeleton*: the conversation with a marker in place of each content. What stands between the
markers is the template's own, the same for all conversations of one shape, so it is looked at once a shape; a
conversation then only has to agree with it letter by letter. Where one does not (the template rewrites contents), its
answers are found one by one, by a marker put in their place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from studio.core.i18n import text
from studio.data.conversation import Message
from studio.data.row import RowError
from studio.data.row_codes import RowCode
from studio.data.special_tokens import ControlWords
from studio.data.template import ChatTemplate
from studio.data.template_skeleton import (
    CONTENT,
    MARKER,
    REASONING,
    Skeleton,
    Slot,
    Span,
    Tools,
    find_slots,
    mark,
    to_edge,
)
from studio.data.template_turns import TurnWriter


class Mask:
    """Finds the answers in what one template renders."""

    def __init__(
        self, template: ChatTemplate, writer: TurnWriter, controls: ControlWords, words: ControlWords
    ) -> None:
        """`controls`: the special tokens; `words`: all added tokens, through which no edge may run."""
        self.template, self.writer = template, writer
        self.controls, self.words = controls, words
        asked = [
            self.render([Message("user", "ask")], (), generation_prompt)
            for generation_prompt in (True, False)
        ]
        self.prompts = asked[0] != asked[1]
        """Whether the template has a generation prompt at all."""
        self.end = self._find_end()
        """What ends an answer, in the middle of a conversation and at its end alike; None where these differ."""

    def render(
        self, messages: Sequence[Message], tools: Tools, generation_prompt: bool = False
    ) -> str | None:
        """Return the text of `messages`; None when there are none or the template refuses them."""
        if not messages:
            return None
        return self.template.try_render(
            self.writer.write(messages), tools, generation_prompt=generation_prompt
        )

    # One shape -------------------------------------------------------------------------------------------------------

    def build_skeleton(self, messages: Sequence[Message], tools: Tools) -> Skeleton | None:
        """Return the Skeleton of the shape of `messages`; None where markers do not come through the template."""
        marked = [mark(message, i) for i, message in enumerate(messages)]
        full = self.render(marked, tools)
        if full is None:
            return None
        slots = sorted(find_slots(full, marked))
        present = {(slot.message, slot.part) for slot in slots}
        lost = set()
        for i, message in enumerate(messages):
            if message.content and (i, CONTENT) not in present:
                if message.role != "system":
                    return None
                lost.add("system")
            if message.reasoning and (i, REASONING) not in present:
                lost.add("reasoning")
        edges = [0, *(place for slot in slots for place in (slot.start, slot.end)), len(full)]
        stretches = tuple(full[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
        answers = {}
        for i, message in enumerate(messages):
            if message.role != "assistant":
                continue
            span = self._find_in_slots(full, slots, marked, tools, i)
            if span is None:
                return None
            first, last = (to_edge(place, edges) for place in span)
            if first is None or last is None:
                return None
            answers[i] = first, last
        return Skeleton(
            stretches, tuple((slot.message, slot.part) for slot in slots), answers, frozenset(lost)
        )

    def _find_in_slots(
        self, full: str, slots: Sequence[Slot], marked: Sequence[Message], tools: Tools, i: int
    ) -> Span | None:
        # A template may repeat contents; the answer itself is the last of them.
        own = sorted({slot.part: slot for slot in slots if slot.message == i}.values())
        if own:
            before = [slot for slot in slots if slot.end <= own[0].start]
            behind = [slot for slot in slots if slot.start >= own[-1].end]
        else:
            before = [slot for slot in slots if slot.message < i]
            behind = [slot for slot in slots if slot.message > i]
        left = before[-1].end if before else 0
        right = behind[0].start if behind else len(full)
        # The same stretch of the prompt: behind the same marker, up to where the model begins.
        anchor = full[before[-1].start : left] if before else ""
        prompt = self._render_prompt(marked[:i], tools, anchor)
        stop = own[0].start if own else right
        start = left + self._find_start(full[left:stop], bool(own), prompt)
        tail_left = own[-1].end if own else start
        tail = full[tail_left:right]

        def render_after() -> str:
            after = self.render(marked[: i + 1], tools) or ""
            mark = full[own[-1].start : own[-1].end] if own else anchor
            after = after.rpartition(mark)[2] if mark else after
            return after if own else after[start - left :]

        closing = self._find_closing(tail, bool(marked[i].tool_calls), not behind, render_after)
        if closing is None or any(slot.message != i and start <= slot.start < tail_left for slot in slots):
            return None
        return start, tail_left + closing

    def _render_prompt(self, messages: Sequence[Message], tools: Tools, anchor: str) -> str | None:
        """Return the prompt that `messages` make, behind the last `anchor` in it; None where there is none."""
        prompt = self.render(messages, tools, True)
        if prompt is None or anchor not in prompt:
            return None
        return prompt.rpartition(anchor)[2] if anchor else prompt

    def _find_start(self, lead: str, known: bool, prompt: str | None) -> int:
        """Return where in `lead`, the text up to an answer's content, the model begins to write.

        `prompt` is the same stretch in the prompt; `known` is False when `lead` holds the answer too, which then has
        no content of its own.
        """
        if prompt is not None and lead.startswith(prompt):
            # A header that no prompt gives stands before what the model writes.
            header = known and not self.prompts and lead[len(prompt) :].strip()
            return len(lead) if header else len(prompt)
        if known or prompt is None:
            return len(lead) if known else 0
        shared = len(os.path.commonprefix([lead, prompt]))
        for found in self.words.pattern.finditer(lead):
            if found.start() < shared < found.end():
                return found.start()
        return shared

    def _find_closing(
        self, tail: str, calls: bool, last: bool, render_after: Callable[[], str]
    ) -> int | None:
        """Return how much of `tail`, the text behind an answer's content, belongs to the answer."""
        if calls:
            place = tail.find(self.end) if self.end and self.controls.find(self.end) else -1
            if place >= 0:
                return place + len(self.end)
            own = tail if last else render_after()
            if own and tail.startswith(own):
                return self.controls.end_of_last(own) or len(own.rstrip())
            return self.controls.end_of_first_run(tail) or None
        if self.end and tail.startswith(self.end):
            return len(self.end)
        if last:
            return self._end_of_turn(tail)
        shared = os.path.commonprefix([tail, render_after()])
        if self.controls.find(tail) and not self.controls.find(shared):
            return 0
        return self._end_of_turn(shared)

    def _end_of_turn(self, tail: str) -> int:
        """Return how much of the text behind an answer ends its turn: up to its first control words, else its words."""
        return self.controls.end_of_first_run(tail) or len(tail.rstrip()) or len(tail)

    def _find_end(self) -> str | None:
        turns = [Message("user", "ask"), Message("assistant", "say")] * 2
        marked = [mark(message, i) for i, message in enumerate(turns)]
        full = self.render(marked, ())
        slots = sorted(find_slots(full, marked)) if full else []
        if [slot.message for slot in slots] != [0, 1, 2, 3]:
            return None
        middle, last = full[slots[1].end : slots[2].start], full[slots[3].end :]
        shared = os.path.commonprefix([middle, last])
        if self.controls.find(middle) and not self.controls.find(shared):
            return None
        return shared[: self._end_of_turn(shared)]

    # One conversation ------------------------------------------------------------------------------------------------

    def find_answers(self, full: str, messages: Sequence[Message], tools: Tools) -> dict[int, Span]:
        """Return where each answer stands in `full`, found one by one. Raises RowError TEMPLATE where one is lost."""
        found = {}
        for i, message in enumerate(messages):
            if message.role == "assistant":
                found[i] = self._find_alone(full, messages, tools, i)
        for i, message in enumerate(messages):
            place = self._locate(full, messages, tools, i) if message.role == "tool" else None
            for number, (start, end) in found.items():
                # Some templates write a tool's result inside the turn that called it.
                if place is not None and place[0] < end and start < place[1]:
                    raise RowError(RowCode.TEMPLATE, text("data.row.answer_lost", number=number + 1))
        return found

    def _find_alone(self, full: str, messages: Sequence[Message], tools: Tools, i: int) -> Span:
        own = self._locate(full, messages, tools, i)
        if own is None and messages[i].content:
            whole = self._span_between(full, messages, tools, i)
            if whole is None or messages[i].content.strip() not in full[slice(*whole)]:
                raise RowError(RowCode.TEMPLATE, text("data.row.answer_lost", number=i + 1))
            return whole
        start, end = own or (None, None)
        left, prompt = 0, None
        before = max((k for k in range(i) if messages[k].content), default=None)
        place = None if before is None else self._locate(full, messages, tools, before)
        if place is not None and (start is None or place[1] <= start):
            left = place[1]
            marked = [*messages[:before], mark(messages[before], before), *messages[before + 1 : i]]
            prompt = self._render_prompt(marked, tools, MARKER.format(before, CONTENT))
        if prompt is None:
            left, prompt = 0, self._render_prompt(messages[:i], tools, "")
            if start is None and not (prompt and full.startswith(prompt)):
                raise RowError(RowCode.TEMPLATE, text("data.row.answer_lost", number=i + 1))
        stop = len(full) if start is None else start
        begin = left + self._find_start(full[left:stop], start is not None, prompt)
        tail_left = begin if end is None else end

        def render_after() -> str:
            after = self.render([*messages[:i], mark(messages[i], i)], tools) or ""
            anchor = MARKER.format(i, CONTENT)
            if end is not None:
                return after.rpartition(anchor)[2]
            return after[begin:] if full[:begin] == after[:begin] else ""

        last = i == len(messages) - 1
        closing = self._find_closing(full[tail_left:], bool(messages[i].tool_calls), last, render_after)
        if closing is None:
            raise RowError(RowCode.TEMPLATE, text("data.row.answer_lost", number=i + 1))
        return begin, tail_left + closing

    def _locate(self, full: str, messages: Sequence[Message], tools: Tools, i: int) -> Span | None:
        """Return where the content of message `i` stands in `full`, by rendering a marker in its place."""
        if not messages[i].content:
            return None
        marked = self.render([*messages[:i], mark(messages[i], i), *messages[i + 1 :]], tools)
        if marked is None:
            return None
        slots = sorted(find_slots(marked, [*[None] * i, mark(messages[i], i)]))
        own = sorted({slot.part: slot for slot in slots}.values())
        if not own or own[-1].part != CONTENT:
            return None
        head, tail = marked[: own[0].start], marked[own[-1].end :]
        head = head.replace(MARKER.format(i, CONTENT), messages[i].content)
        start, end = len(head), len(full) - len(tail)
        # Of blanks a template may leave nothing; of anything else there must be something.
        least = 1 if messages[i].content.strip() else 0
        fits = full.startswith(head) and full.endswith(tail) and start + least <= end
        return (start, end) if fits else None

    def _span_between(self, full: str, messages: Sequence[Message], tools: Tools, i: int) -> Span | None:
        """Return what lies between the prompt before answer `i` and its end; None where turns are rewritten."""
        before = self.render(messages[:i], tools, True)
        after = full if i == len(messages) - 1 else self.render(messages[: i + 1], tools)
        if before is None or after is None:
            return None
        if full.startswith(before) and full.startswith(after) and len(before) < len(after):
            return len(before), len(before) + (
                self.controls.end_of_last(after[len(before) :]) or len(after) - len(before)
            )
        return None
