"""One answer that somebody wants: what is asked, how it is drawn, who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from studio.engine.generation.request import Sampling
from studio.engine.generation.text_stream import Answer

Side = Literal["base", "tuned"]


@dataclass(slots=True, eq=False, kw_only=True)
class AnswerRequest:
    """`tell` hears of the answer as it grows, then None at its end; or what is wrong. It is called on other threads."""

    tell: Callable[[Answer | BaseException | None], None]
    messages: Sequence[Mapping[str, Any]] = ()
    """Turns as data.conversation.read_message takes them; the last one is answered."""
    words: str = ""
    """Where there are no messages: a text that the answer continues, without any template."""
    sampling: Sampling = Sampling()
    should_stop: Callable[[], bool] = lambda: False
    stop: tuple[str, ...] = ()
    """Words that end the answer and are no part of it."""
    likeliest: int | None = None
    """As Request has it."""
    tools: tuple[Mapping[str, Any], ...] = ()
    called: tuple[str, ...] = ()
    """Names of the tools of which one must be called; none: as the model likes."""
    grammar: str = ""
    """What the answer keeps to, as json_grammar.compile_schema() returns it."""
    ended: bool = False

    def end(self, error: BaseException | None = None) -> None:
        """Say once that there comes no more, or why there is nothing."""
        if not self.ended:
            self.ended = True
            self.tell(error)
