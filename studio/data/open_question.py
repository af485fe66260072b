"""A question that only the person can answer, with the recipe field that takes the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.i18n import Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is not clear about a data set."""

    id: str
    """`format`, `mapping.ROLE`, `encoding`, `sheet`, ...; one of each for a data set."""
    question: Text
    choices: tuple[str, ...]
    """Values that `field` can take, the likeliest first."""
    names: tuple[Text, ...] = ()
    """What each choice means, in the order of `choices`; () where they speak for themselves."""
    field: str
    """Recipe field that answers it: `data.format`, `data.mapping.output`, `data.encoding`, ..."""

    def put_first(self, choices: Sequence[str]) -> Question:
        """Return the question with those of its `choices` in front that are named."""
        order = sorted(range(len(self.choices)), key=lambda place: self.choices[place] not in choices)
        return dataclasses.replace(
            self,
            choices=tuple(self.choices[place] for place in order),
            names=tuple(self.names[place] for place in order) if self.names else (),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as reports have it."""
        return {
            "question": self.question,
            "choices": list(self.choices),
            "names": list(self.names),
            "field": self.field,
        }
