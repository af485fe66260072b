"""Prompts with answers that are not known yet: what sizes are planned and tried with before the model has drawn any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studio.data.sequence_packing import Example, RolloutFacts, WrappedExamples, measure_lengths


class FillerAnswers(WrappedExamples):
    """Each prompt with its own tokens again and again in the place of the longest answer that it may get."""

    def __init__(self, examples: Sequence[Example], answer_tokens: int) -> None:
        super().__init__(examples)
        self.answer_tokens = answer_tokens

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]"""
        return measure_lengths(self.examples) + self.answer_tokens

    def make(self, i: int) -> Example:
        """Return example `i`."""
        prompt = self.examples[i].token_ids
        ids = np.resize(prompt, len(prompt) + self.answer_tokens)
        trained = np.arange(len(ids)) >= len(prompt)
        return Example(ids, trained, (len(ids),), drawn=RolloutFacts(advantage=1.0))
