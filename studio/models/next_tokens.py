"""How far a changed model's next tokens are from what they were: mean KL over some rows, in nats a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

TOKENS = 640
"""That are read each time: 628 told the demo's tensors apart."""


class NextTokens:
    """What a model says of the next token at each place of some rows, to hold later answers against."""

    def __init__(self, model: Any, rows: Sequence[Sequence[int]], tokens: int = TOKENS) -> None:
        """Ask `model` as it is. `tokens`: of the rows, at most."""
        device, self.texts, self.count = next(model.parameters()).device, [], 0
        for row in rows:
            if self.count < tokens and len(row):
                self.texts.append(torch.tensor([list(row[: tokens - self.count])], device=device))
                self.count += self.texts[-1].shape[1]
        self.model = model
        self.wanted = [self._predict(ids) for ids in self.texts]

    def measure(self) -> float:
        """Return the mean KL of what the model says now from what it said."""
        found = sum(
            float((one.exp() * (one - self._predict(ids))).sum())
            for one, ids in zip(self.wanted, self.texts, strict=True)
        )
        return max(0.0, found / max(1, self.count))

    @torch.no_grad()
    def _predict(self, ids: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (S, V) fp32 of ids (1, S)."""
        return self.model(ids, use_cache=False).logits[0].float().log_softmax(-1)
