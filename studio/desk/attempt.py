"""One attempt of a run, on the engine's thread, with what is known of the machine and was set right on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from studio.core.events import Warned
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.recipe import Recipe
from studio.core.record import RunRecord
from studio.desk.health import Health, hide_broken_triton
from studio.host.remembered import Remembered

LOST = 70
"""Exit code of a process that can no longer use the GPU: the supervisor's next one resumes the run."""


def attempt(
    folder: Any,
    recipe: Recipe,
    watch: Any,
    health: Health,
    *,
    should_stop: Callable[[], bool],
    should_pause: Callable[[], bool],
    should_save: Callable[[], bool],
) -> RunRecord:
    """Run the engine in this thread until the run ends, watched by `watch`; returns the run's record.

    A supervised process that loses the GPU ends itself: only a new one can use it again.
    """
    machine = health.add_experience(health.machine(), recipe, folder.run)
    for repaired in health.repairs():
        watch.emit(repaired)
    hidden = hide_broken_triton(machine)
    if hidden is not None:
        watch.emit(Warned(message=hidden))
    from studio.engine.run import run

    workspace = health.workspace
    return run(
        recipe,
        machine,
        folder,
        watch.emit,
        should_stop,
        watch.beat,
        Remembered(workspace.remembered),
        (lambda: os._exit(LOST)) if PARENT_VARIABLE in os.environ else None,
        health.mirror(),
        workspace.data_cache,
        should_pause,
        should_save,
    )
