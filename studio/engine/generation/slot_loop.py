"""Sequences that grow by a token a step on the device: the next step is under way before the last one is read.

Whoever ends with a token is computed once more, in its own pages, and what that draws is left out: a step more costs
less than a device that waits for the host after each. Where a distribution is looked at, or cut, the host draws.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from studio.engine.generation.sequence import GrowingSequence
from studio.engine.generation.slot_steps import Drawn, GrowingSlot, SlotSteps
from studio.models.decoder.cached_rows import PageArena
from studio.models.decoder.live_decoder import LiveDecoder


class SlotLoop:
    """Steps of `decoder` over `arena`, from call to call."""

    def __init__(self, decoder: LiveDecoder, arena: PageArena) -> None:
        self._steps = SlotSteps(decoder, arena)
        self._members: list[GrowingSequence] = []
        """Who grows by the step that is under way."""
        self._drawn: Drawn | None = None
        """What it draws, None where none is."""

    def land(self) -> None:
        """Forget the step under way: who grew by it does not, or begins anew."""
        self._members, self._drawn = [], None

    def grow(self, active: Sequence[GrowingSequence]) -> Tensor | None:
        """Put the next token of each into its `drawn`, or of those who were there before; else return their logits.

        Logits (S, V) fp32 where the host has to draw. Raises torch.OutOfMemoryError.
        """
        members, drawn = self._members, self._drawn
        self.land()
        if drawn is not None and members != list(active):
            hand_out(members, drawn, active)
            if any(one.drawn for one in active):  # the others grow with the next step
                return None
            drawn = None
        if drawn is None:
            self._load(active)
            if not all(one.drawn_by_device for one in active):
                return self._steps.logits()
            drawn = self._steps.launch()
        try:
            if any(len(one.tokens) + 1 < one.last_tokens for one in active):
                self._members, self._drawn = list(active), self._steps.launch()
        finally:  # what was drawn before a step that fails is not lost
            hand_out(active, drawn, active)
        return None

    def score(self, active: Sequence[GrowingSequence]) -> Tensor:
        """Return the logits (S, V) fp32 behind each one's last token."""
        self.land()
        self._load(active)
        return self._steps.logits()

    def _load(self, active: Sequence[GrowingSequence]) -> None:
        samplings = [one.completion.request.sampling for one in active]
        self._steps.load(
            [
                GrowingSlot(one.tokens[-1], len(one.tokens), one.pages, sampling.temperature, sampling.seed)
                for one, sampling in zip(active, samplings, strict=True)
            ]
        )


def hand_out(members: Sequence[GrowingSequence], drawn: Drawn, active: Sequence[GrowingSequence]) -> None:
    """Give those of `members` who still grow what was drawn for them."""
    for one, (token, score) in zip(members, drawn.read(), strict=True):
        if one in active:
            one.drawn.append((token, score, None))
