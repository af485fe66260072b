"""Learning-rate schedules by name."""

from __future__ import annotations

import math

from studio.core.recipe import OptimSpec


def learning_rate(spec: OptimSpec, step: int, total_steps: int) -> float:
    """Return the learning rate of optimizer step `step` (from 0) of `total_steps`: a pure function, so nothing to save.

    Warm-up is linear from lr / (warm-up + 1). Then linear: to 0; cosine: half a cosine to 0; constant; wsd
    (warm-up, stable, decay): constant, then linear to 0 over the last `decay_share` of the steps (Hu et al., 2024,
    MiniCPM, arXiv:2404.06395).
    """
    warmup = spec.warmup_steps or math.ceil(spec.warmup_share * total_steps)
    if step < warmup:
        return spec.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total_steps - warmup)
    if spec.schedule == "linear":
        return spec.learning_rate * max(0.0, 1.0 - done)
    if spec.schedule == "cosine":
        return spec.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    if spec.schedule == "wsd":
        decay = max(1, math.ceil(spec.decay_share * total_steps))
        return spec.learning_rate * min(1.0, (total_steps - step) / decay)
    return spec.learning_rate
