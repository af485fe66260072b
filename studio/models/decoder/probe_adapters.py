"""What the probe does to a decoder's adapters and gradients, and takes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from studio.models.decoder.decoder import Decoder


@contextmanager
def leave_gradients(gradients: Tensor) -> Iterator[None]:
    """Leave `gradients` as they are; without any, as before a run's first step, no copy of them is taken."""
    before = gradients.clone() if gradients.any() else None
    gradients.zero_()
    try:
        yield
    finally:
        gradients.zero_() if before is None else gradients.copy_(before)


@contextmanager
def stir_adapters(decoder: Decoder) -> Iterator[None]:
    """Random numbers in every adapter inside: fresh ones are half zeros, through which no gradient flows."""
    adapters = decoder.store.weights[: decoder.store.adapters_count]
    before = adapters.clone()
    generator = torch.Generator(decoder.device).manual_seed(0)
    groups = [group for layer in decoder.layers for group in layer.groups]
    lengths = [group.magnitudes.lengths for group in groups if group.magnitudes is not None]
    trained = [length.clone() for length in lengths]
    adapters.normal_(0.0, 0.02, generator=generator)
    for length, before_it in zip(
        lengths, trained, strict=True
    ):  # near what they were, else nothing gets through
        length.mul_(5.0).add_(1.0).mul_(before_it)
    decoder.note_change()
    try:
        yield
    finally:
        adapters.copy_(before)
        decoder.note_change()
