"""One attempt of a run, on the engine's thread, with what is known of the machine and was set right on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from studio.core import start_clock
from studio.core.errors import StudioError
from studio.core.events import DataPrepared, RunEvent, RunPlanned, Warned
from studio.core.facts import BackendPlan, MachineFacts, MeasuredSpeed
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder
from studio.models.catalog import inspect_model
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import choose_device, memory_share
from studio.planning.speed_estimate import is_reckonable, name_path, read_rows, reckon_speed
from studio.services.machine_state import MachineState, hide_broken_triton
from studio.services.preload import import_libraries
from studio.services.throughput_history import read_pace

LOST = 70
"""Exit code of a process that can no longer use the GPU: the supervisor's next one resumes the run."""


def attempt(
    folder: RunFolder,
    recipe: Recipe,
    watch: Any,
    health: MachineState,
    *,
    should_stop: Callable[[], bool],
    should_pause: Callable[[], bool],
    should_save: Callable[[], bool],
) -> RunRecord:
    """Run the engine in this thread until the run ends, watched by `watch`; returns the run's record.

    A supervised process that loses the GPU ends itself: only a new one can use it again.
    """
    start_clock.mark(os.environ, "machine")
    machine = health.add_experience(health.now(), recipe, folder.run)
    for repaired in health.repairs():
        watch.emit(repaired)
    hidden = hide_broken_triton(machine)
    if hidden is not None:
        watch.emit(Warned(message=hidden))
    start_clock.mark(os.environ, "libraries")
    workspace = health.workspace
    remembered = Remembered(workspace.remembered)
    told: dict[type, Any] = {}

    def emit(event: RunEvent) -> None:
        if isinstance(event, (RunPlanned, DataPrepared)):
            told[type(event)] = event
        watch.emit(event)

    with _reading(recipe, machine) as weights:
        record = import_libraries("studio.engine.run").run(
            recipe,
            machine,
            folder,
            emit,
            should_stop,
            watch.beat,
            remembered,
            (lambda: os._exit(LOST)) if PARENT_VARIABLE in os.environ else None,
            health.mirror(),
            workspace.data_cache,
            should_pause,
            should_save,
            _take_clock(),
            weights,
        )
    if RunPlanned in told:
        _learn_speed(folder, recipe, machine, remembered, told[RunPlanned].plan, told.get(DataPrepared))
    return record


@contextmanager
def _reading(recipe: Recipe, machine: MachineFacts) -> Iterator[Any]:
    """Read the model's weights to the card for a block: torch is enough for it, the run's other libraries follow."""
    from studio.models.weights import read_ahead

    weights = None
    with suppress(StudioError, OSError, RuntimeError):  # the run meets the same, and tells it
        facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
        weights = read_ahead(facts, choose_device(machine, recipe)[0].value, memory_share(machine))
    try:
        yield weights
    finally:
        if weights is not None:
            weights.close()


def _learn_speed(
    folder: RunFolder,
    recipe: Recipe,
    machine: MachineFacts,
    remembered: Remembered,
    plan: BackendPlan,
    prepared: DataPrepared | None,
) -> None:
    """Remember how fast the run was, so that the time of the next one can be told before it starts."""
    pace = read_pace(folder)
    if pace is None:
        return
    card, path = choose_device(machine, recipe)[1], name_path(plan)
    with suppress(
        StudioError, OSError
    ):  # a model that was taken away, a full disk: the next one does without
        facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
        if not is_reckonable(facts):
            return
        rows = read_rows(prepared.facts if prepared else None)
        one = MeasuredSpeed(
            run=folder.run,
            gpu=card.name if card else "",
            path=path,
            quantization=plan.quantization.value,
            method=recipe.adapter.method,
            parameters=facts.parameters,
            tokens_per_s=pace.tokens_per_s,
            reckoned_tokens_per_s=reckon_speed(plan, machine, facts, recipe, card, rows, path),
        )
        remembered.note_speed(one)


def _take_clock() -> dict[str, float]:
    """Return how long the parts of this process's start took; a further run of it has none."""
    begun_s = start_clock.split(os.environ, time.time())
    os.environ.pop(start_clock.VARIABLE, None)
    return begun_s
