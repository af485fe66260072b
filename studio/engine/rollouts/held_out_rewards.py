"""What greedy answers to held-out questions are worth: by the run's rewards, and by what leads none of them astray."""

from __future__ import annotations

import math
from collections.abc import Mapping

from studio.data.prompt_rows import PromptRows
from studio.engine.held_out_score import HeldOutAnswers
from studio.engine.rewards.reward import Answered, RewardSet
from studio.engine.train_state import Evaluation


class HeldOutRewards:
    """One look at the questions gives both: they are answered once."""

    def __init__(self, answers: HeldOutAnswers, rows: PromptRows, rewards: RewardSet) -> None:
        self._answers, self._rows, self._rewards = answers, rows, rewards
        self._scored: dict[str, float] = {}

    def evaluate(self) -> Evaluation:
        """Return the mean reward, and minus that as the loss: what training makes smaller is not to grow here."""
        grown = self._answers.answer()
        self._scored = {name: one.value for name, one in self._answers.bound(grown).items()}
        asked = [self._rows.read(place) for place in self._answers.places[: len(grown)]]
        judged = self._rewards.score(
            [
                Answered(
                    prompt=row.messages,
                    answer=one.words,
                    columns=row.columns,
                    length_tokens=one.tokens,
                    ended=one.ended,
                )
                for row, one in zip(asked, grown, strict=True)
            ]
        )
        totals = [one.total for one in judged if not math.isnan(one.total)]
        if not totals:
            return Evaluation(math.nan, {})
        mean = sum(totals) / len(totals)
        length = sum(one.tokens for one in grown) / len(grown)
        return Evaluation(0.0 - mean, {"reward": mean, "completions/mean_length": length})

    def score(self) -> Mapping[str, float]:
        """Return what the answers of the last evaluation are worth by each metric."""
        return self._scored
