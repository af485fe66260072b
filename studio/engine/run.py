"""One run from top to bottom: prepare, load, try, train, save, verify; the only broad `except`."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from studio.core.events import RunEvent, RunFailed, RunFinished, RunStopped
from studio.core.facts import MachineFacts
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.data.prepare import PreparationStopped
from studio.engine.artifact import Trained
from studio.engine.checkpoint import list_checkpoints, sweep
from studio.engine.fault_recovery import is_sticky, may_pass
from studio.engine.oom_fallback import release_memory
from studio.engine.phases.load import load
from studio.engine.phases.prepare import prepare
from studio.engine.phases.save import save
from studio.engine.phases.score import begin_scoring, settle
from studio.engine.phases.train import (
    begin_samples,
    compile_kernels,
    compute_reference,
    computing,
    train,
    try_everything,
)
from studio.engine.phases.verify import verify
from studio.engine.run_context import Run, Stopped
from studio.engine.run_folder import RunFolder
from studio.hub.access_token import NO_MIRROR, Mirror
from studio.hub.child import DownloadStopped
from studio.machine.failures import diagnose
from studio.models.resolve import resolve_model
from studio.models.weights import Weights
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import choose_device


def run(
    recipe: Recipe,
    machine: MachineFacts,
    folder: RunFolder,
    emit: Callable[[RunEvent], None],
    should_stop: Callable[[], bool],
    beat: Callable[[str, int, int], None] = lambda phase, step, micro: None,
    remembered: Remembered | None = None,
    leave: Callable[[], None] | None = None,
    mirror: Mirror = NO_MIRROR,
    data_cache: Path | None = None,
    should_pause: Callable[[], bool] = lambda: False,
    should_save: Callable[[], bool] = lambda: True,
    start_s: Mapping[str, float] = MappingProxyType({}),
    weights: Weights | None = None,
) -> RunRecord:
    """Train by `recipe` in `folder`, from its newest whole checkpoint when it has one; returns the final run.json.

    Never raises for a failure of the run: that ends as RunFailed with a Diagnosis, its traceback in log.txt.
    `remembered` tells what earlier runs learned of the machine, and takes what this one learns. `leave` is called
    when the GPU can no longer be used by this process: a supervised process ends itself there, and the run resumes
    in a new one; when `leave` returns, or is None, the run fails. `data_cache` keeps converted data sets for the next.
    While `should_pause` says so it holds after a step; a stop while `should_save` says no writes no checkpoint.
    `start_s`: what passed before this call, for the run's timings_s. `weights`: the model's, on their way to the card.
    """
    if remembered is not None:
        card = choose_device(machine, recipe)[1]
        machine = remembered.add_experience(machine, card.name if card else "")
    now = {"state": "running", "packages": dict(machine.packages), "diagnosis": None, "ended_s": 0.0}
    record = folder.change_record(lambda kept: dataclasses.replace(kept, **now))
    this = Run(recipe, machine, folder, emit, should_stop, beat, record, remembered, mirror, data_cache)
    this.should_pause, this.should_save, this.weights = should_pause, should_save, weights
    this.timings_s.update(start_s)
    lost = False
    try:
        with this.exits:
            _run_phases(this)
    except (Stopped, PreparationStopped, DownloadStopped):
        this.record = dataclasses.replace(this.record, state="stopped")
        emit(RunStopped(step=this.record.steps, saved=bool(list_checkpoints(folder.checkpoints))))
    except (
        Exception
    ) as error:  # the one place: whatever ends a run becomes a diagnosis that a person can act on
        with folder.log.open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc() + "\n")
        lost = bool(this.record.gpu) and is_sticky(error)
        if lost and leave is not None and may_pass(error):
            leave()
        diagnosis = diagnose(error, machine, this.recipe)
        this.record = dataclasses.replace(this.record, state="failed", diagnosis=diagnosis)
        emit(RunFailed(step=this.record.steps, diagnosis=diagnosis))
    timings_s = {
        name: this.record.timings_s.get(name, 0.0) + took_s for name, took_s in this.timings_s.items()
    }
    ended = dataclasses.replace(
        this.record, ended_s=time.time(), timings_s=dict(this.record.timings_s) | timings_s
    )
    # The person may have renamed it meanwhile.
    this.record = folder.change_record(lambda kept: dataclasses.replace(ended, name=kept.name), ended)
    if not lost:  # every call to a lost GPU fails
        release_memory()
    return this.record


def _run_phases(this: Run) -> None:
    trained = _train(this)  # the trained model lives and dies in there, so that the reload has its memory
    if trained is None:
        return
    release_memory()
    verify(this, trained)
    this.change_record(state="finished")
    this.emit(RunFinished(step=this.record.steps, loss=trained.loss, artifact=this.record.artifact))


def _train(this: Run) -> Trained | None:
    """Take the phases that the model lives through; returns None when the person stopped it."""
    sweep(this.folder.checkpoints)
    model = this.recipe.model
    facts = resolve_model(model.source, model.revision, this.emit, this.should_stop, this.mirror)
    prepared = prepare(this, facts)
    training = load(this, prepared)
    with computing(this, training):
        compute_reference(this, training)
        compile_kernels(this, training)
        try_everything(this, training)
        samples = begin_samples(this, training)
        scoring = begin_scoring(this, training)
        outcome = train(this, training)
    if outcome.end == "stopped":
        this.change_record(state="stopped")
        this.emit(RunStopped(step=outcome.state.step, saved=this.should_save()))
        return None
    settle(this, training, scoring)
    return save(this, training, samples, scoring)
