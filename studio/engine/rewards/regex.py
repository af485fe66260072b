"""The answer holds what a regular expression describes: one for all rows, or each row's given answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.knob import knob
from studio.engine.guarded_code.pool import CodeLimits, CodePool, Failed, Program
from studio.engine.guarded_code.programs import match_pattern
from studio.engine.rewards.given_answer import find_expected, take_part
from studio.engine.rewards.reward import Answered, Reward, RowReward


@dataclass(frozen=True, kw_only=True, slots=True)
class Regex(RowReward):
    """1 or 0."""

    name: ClassVar[str] = "regex"

    pattern: str = knob("")
    whole: bool = knob(False)
    column: str = knob("")

    @contextmanager
    def opened(self, folder: Path, seed: int) -> Iterator[Reward]:
        """See RowReward. Raises StudioError for what is no regular expression."""
        try:
            re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise StudioError(
                text("reward.pattern", pattern=self.pattern), literal(str(error)), text("reward.pattern.fix")
            ) from error
        program = Program(
            path=Path(match_pattern.__file__), function=match_pattern.match.__name__, form="text"
        )
        with CodePool(program, CodeLimits(), seed=seed) as pool:
            yield OpenRegex(self, pool)


class OpenRegex:
    """A pattern whose children stand."""

    def __init__(self, reward: Regex, pool: CodePool) -> None:
        self.name, self._reward, self._pool = reward.name, reward, pool

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward."""
        reward = self._reward
        patterns = [reward.pattern or find_expected(one.columns, reward.column) for one in answers]
        rows = [
            {
                "answer": take_part(answered.answer), "prompt": [], "expected": None, "length_tokens": 0, "ended": True,
                "columns": {"patterns": pattern, "whole": reward.whole},
            }
            for answered, pattern in zip(answers, patterns, strict=True) if pattern
        ]  # fmt: skip
        found = iter(self._pool.judge(rows) if rows else ())
        return [next(found) if pattern else None for pattern in patterns]
