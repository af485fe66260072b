"""Supervised fine-tuning: next-token loss on the answers of conversations."""

from __future__ import annotations

from studio.engine.objectives.objective import TokenObjective


class SupervisedFineTuning(TokenObjective):
    """-log p of every answer's tokens; the loss mask says which these are."""

    name = "sft"


SFT = SupervisedFineTuning()
