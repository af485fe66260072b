"""Supervised fine-tuning: next-token loss on the answers of conversations."""

from __future__ import annotations

from studio.engine.loss import LossHead
from studio.engine.methods.method import Method

SFT = Method(name="sft", build_loss=LossHead)
