"""Continued pretraining: next-token loss on every token of plain text, joined and cut into full blocks."""

from __future__ import annotations

from studio.engine.objectives.objective import TokenObjective


class Pretraining(TokenObjective):
    """-log p of every token but the first of a block."""

    name = "pretrain"


PRETRAIN = Pretraining()
