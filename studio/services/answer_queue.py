"""Who waits for an answer: in their order, those to one model answered together, by whoever has the model."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from studio.core.recipe import Recipe
from studio.services.worker import Worker

POLL_S = 0.2
Tell = Callable[[Any], None]


@dataclass(eq=False, slots=True, kw_only=True)
class QueuedAnswer:
    """One answer that is wanted of a model. `tell` hears as engine.generation.answer_request.AnswerRequest has it."""

    run: str
    checkpoint: str
    recipe: Recipe | None
    side: str
    turn: int
    """Of the memory: what waited while the model was freed is answered no more."""
    tell: Tell
    should_stop: Callable[[], bool]
    asked: dict[str, Any]
    """Further fields of AnswerRequest."""
    sampling: dict[str, float]
    leaving: threading.Lock
    """Taken, for good, by who no longer counts this one among those that are answered."""
    ask: Any = field(default=None)
    """Its engine.generation.answer_request.AnswerRequest, once somebody answers."""

    def is_like(self, other: QueuedAnswer) -> bool:
        """Return whether one model answers both at once."""
        mine = (self.run, self.checkpoint, self.recipe, self.side, self.turn)
        return mine == (other.run, other.checkpoint, other.recipe, other.side, other.turn)

    def begin(self) -> Any:
        """Return the AnswerRequest of this wish."""
        from studio.engine.generation.answer_request import AnswerRequest
        from studio.engine.generation.request import Sampling

        sampling = Sampling(**self.sampling)
        self.ask = AnswerRequest(
            tell=self.tell, should_stop=self.should_stop, sampling=sampling, **self.asked
        )
        return self.ask

    def end(self, error: BaseException | None = None) -> None:
        """Say once that there comes no more, or why there is nothing."""
        if self.ask is not None:
            self.ask.end(error)
        else:
            self.tell(error)


class AnswerQueue:
    """Methods may be called from any thread."""

    def __init__(
        self,
        worker: Callable[[], Worker],
        hold: threading.Lock,
        speak: Callable[[QueuedAnswer], Any],
        sparing: Callable[[Callable[[], None]], None],
        must_end: Callable[[int], bool],
    ) -> None:
        """`worker`: whose thread computes now; `hold` is held while it does.

        `speak` returns the engine.chat.Speaker that is asked for; `sparing` does what is given and frees memory where
        it ran out; `must_end` tells whether what was begun at a turn is to end.
        """
        self._worker, self._hold, self._speak, self._sparing = worker, hold, speak, sparing
        self._must_end = must_end
        self._waiting: deque[QueuedAnswer] = deque()
        self._lock = threading.Lock()
        self._due = False

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, wish: QueuedAnswer) -> None:
        """Let `wish` wait behind all others; returns at once."""
        with self._lock:
            self._waiting.append(wish)
        self._call()

    def follow(self, wish: QueuedAnswer, answers: queue.SimpleQueue[Any]) -> Iterator[Any]:
        """Yield what `wish` hears in `answers` until it ends. Raises what it hears of that kind."""
        while True:
            try:
                answer = answers.get(timeout=POLL_S)
            except queue.Empty:
                if wish.should_stop():  # also while the model is still being loaded
                    return
                continue
            if answer is None:
                return
            if isinstance(answer, BaseException):
                raise answer
            yield answer

    def _call(self) -> None:
        with self._lock:
            if self._due or not self._waiting:
                return
            self._due = True
        self._worker().submit(self._run)

    def _run(self) -> None:
        try:
            self._converse()
        finally:
            with self._lock:
                self._due = False
            self._call()  # behind whatever else that thread has to do

    def _converse(self) -> None:
        """Answer who is first, and together with it all who come before somebody asks for another model."""
        taken: list[QueuedAnswer] = []

        def take_in() -> list[Any]:
            if self._worker().waits:  # somebody has other work for this thread
                return []
            found = self._take_like(taken[0])
            taken.extend(found)
            return [wish.begin() for wish in found]

        try:
            with self._hold:
                first = self._take()  # what it waited for may have been to make room
                if first is None:
                    return
                taken.append(first)
                speaker = self._speak(first)
                asks = [first.begin(), *take_in()]
                self._sparing(
                    lambda: speaker.converse(asks, first.side, lambda: self._must_end(first.turn), take_in)
                )
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that asked
            for wish in taken:
                wish.end(error)
        for wish in taken:
            wish.end()

    def _take(self) -> QueuedAnswer | None:
        """Return who is first; whoever wants no more is told so and left out."""
        while self._waiting:
            with self._lock:
                wish = self._waiting.popleft() if self._waiting else None
            if wish is None or not wish.should_stop():
                return wish
            wish.end()
        return None

    def _take_like(self, first: QueuedAnswer) -> list[QueuedAnswer]:
        """Return those who come next and whom the same model answers, up to the first who wants another one."""
        found: list[QueuedAnswer] = []
        with self._lock:
            while self._waiting and self._waiting[0].is_like(first):
                found.append(self._waiting.popleft())
        return found
