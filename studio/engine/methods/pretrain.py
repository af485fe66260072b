"""Continued pretraining: next-token loss on every token of plain text, joined and cut into full blocks."""

from __future__ import annotations

from studio.engine.loss import LossHead
from studio.engine.methods.method import Method

PRETRAIN = Method(name="pretrain", build_loss=LossHead)
