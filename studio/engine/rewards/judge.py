"""A model behind an OpenAI-compatible address judges by a person's rubric: 0 to 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.knob import knob
from studio.core.metrics.metric import AnsweredRow
from studio.core.metrics.verdict import VERDICT_TOKENS, read_score, write_case
from studio.engine.guarded_code.pool import Failed
from studio.engine.rewards.given_answer import InformedReward, find_expected
from studio.engine.rewards.reward import Answered, Reward
from studio.hub.chat_client import ChatClient

WORDS_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeReward(InformedReward):
    """What a judge says. Its address is the only one that is asked, and only while rewards are open."""

    name: ClassVar[str] = "judge"
    needs_expected: ClassVar[bool] = True

    address: str = knob("")
    model: str = knob("")
    rubric: str = knob("")
    at_once: int = knob(8, minimum=1, maximum=256)

    @contextmanager
    def opened(self, folder: Path, seed: int) -> Iterator[Reward]:
        """See RowReward. Raises StudioError where no address or rubric is named, or the address does not answer."""
        if not (self.address.strip() and self.rubric.strip()):
            raise StudioError(*(text(f"reward.judge.missing{part}") for part in ("", ".why", ".fix")))
        client = ChatClient(self.address.strip(), self.model.strip())
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="judge") as threads:
            yield OpenJudge(self, client, threads)


class OpenJudge:
    """A judge that is asked, several answers at once."""

    def __init__(self, reward: JudgeReward, client: ChatClient, threads: ThreadPoolExecutor) -> None:
        self.name, self._reward, self._client, self._threads = reward.name, reward, client, threads

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward."""
        return list(self._threads.map(self._judge, answers))

    def _judge(self, answered: Answered) -> float | Failed:
        reward = self._reward
        row = AnsweredRow(
            given=answered.answer,
            expected=find_expected(answered.columns, reward.column) or "",
            prompt=str(answered.prompt[-1].get("content", "")) if answered.prompt else "",
        )
        try:
            said = self._client.ask(write_case(row, reward.rubric), max_tokens=VERDICT_TOKENS)
        except StudioError as error:
            return Failed("unreachable", str(error))
        score = read_score(said)
        return Failed("unread", said[-WORDS_CHARACTERS:]) if score is None else score
