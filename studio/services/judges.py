"""Judges: a model reads question, given answer and answer, and scores them by a person's rubric."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.metrics.metric import AnsweredRow
from studio.core.metrics.verdict import VERDICT_TOKENS, read_score, write_case
from studio.hub.chat_client import ChatClient
from studio.services.chat_service import ChatService
from studio.services.evaluation_result import Contender

RUBRIC_BYTES = 2**16


class AddressJudge:
    """A model behind an OpenAI-compatible address."""

    def __init__(self, client: ChatClient, rubric: str) -> None:
        self._client = client
        self._text = rubric
        self.rubric = name_rubric(f"{client.address} {client.model}", rubric)

    def judge(
        self,
        rows: Sequence[AnsweredRow],
        on_verdict: Callable[[int, Any], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Ask row by row; see evaluation_result.AnswerJudge."""
        for place, row in enumerate(rows):
            if should_stop():
                return
            said = self._client.ask(write_case(row, self._text), max_tokens=VERDICT_TOKENS)
            on_verdict(place, read_verdict(said))


class LocalJudge:
    """A run's result, or a model of this machine."""

    def __init__(self, chat: ChatService, contender: Contender, rubric: str) -> None:
        self._chat, self._contender = chat, contender
        self._text = rubric
        name = contender.run or contender.recipe.model.source
        self.rubric = name_rubric(f"{name} {contender.name}", rubric)

    def judge(
        self,
        rows: Sequence[AnsweredRow],
        on_verdict: Callable[[int, Any], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Ask many at once; see evaluation_result.AnswerJudge."""
        from studio.engine.answer_journal import Judgement

        who = self._contender

        def work(speaker: Any, ends: Callable[[], bool]) -> None:
            prompts, places = [], []
            for place, row in enumerate(rows):
                try:
                    prompts.append(speaker.read_prompt(write_case(row, self._text)))
                except StudioError as error:  # longer than the judge can read
                    on_verdict(place, Judgement(None, str(error)))
                else:
                    places.append(place)
            speaker.complete(
                prompts,
                who.side,
                max_new_tokens=VERDICT_TOKENS,
                on_end=lambda number, one: on_verdict(places[number], read_verdict(speaker.say(one.tokens))),
                should_stop=lambda: ends() or should_stop(),
            )

        if rows:
            self._chat.refuse_while_training()
            self._chat.lend(who.run, who.checkpoint, who.recipe, work)


def read_rubric(path: Path) -> str:
    """Return the words of a rubric's file. Raises StudioError."""
    try:
        content = path.read_bytes()[: RUBRIC_BYTES + 1]
        words = content.decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse_rubric(path) from error
    if not words or len(content) > RUBRIC_BYTES:
        raise _refuse_rubric(path)
    return words


def read_verdict(words: str) -> Any:
    """Return the engine.answer_journal.Judgement that a judge's words come to: by the last score in them."""
    from studio.engine.answer_journal import Judgement

    return Judgement(read_score(words), words)


def name_rubric(judge: str, rubric: str) -> str:
    """Return what tells a judge with its rubric from all others."""
    return hashlib.sha256(f"{judge}\0{rubric}".encode()).hexdigest()[:16]


def _refuse_rubric(path: Path) -> StudioError:
    return StudioError(text("eval.rubric", name=path.name), text("eval.rubric.why"), text("eval.rubric.fix"))
