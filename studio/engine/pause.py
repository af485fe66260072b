"""A run that a person paused: it stands still between two steps, with signs of life, until it may go on."""

from __future__ import annotations

import time
from typing import Any

from studio.core.events import RunPaused, RunUnpaused
from studio.engine.rng_state import read_generators, write_generators

TICK_S = 0.2
"""So often it looks whether it may go on, and gives a sign of life: no watchdog takes it for stalled."""


def stand_still(hooks: Any, step: int) -> None:
    """Wait after `step` until `hooks` (engine.trainer.Hooks) say that the run may go on or is to stop.

    Random numbers go on where they were: a talk beside it loads a model, which draws from the same generators.
    """
    generators = read_generators()
    hooks.emit(RunPaused(step=step))
    ticks = 0
    while hooks.should_pause() and not hooks.should_stop():
        hooks.beat("pause", step, ticks)
        ticks += 1
        time.sleep(TICK_S)
    write_generators(generators)
    if not hooks.should_stop():
        hooks.emit(RunUnpaused(step=step))
