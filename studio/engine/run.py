"""One run from top to bottom: plan, load, adapt, fuse, prepare, train, save, verify; the only broad `except`."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.events import (
    DataPrepared,
    PhaseStarted,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPlanned,
    RunResumed,
    RunStopped,
    Warned,
)
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.files import write_json
from studio.core.hub_token import NO_MIRROR, Mirror
from studio.core.recipe import Recipe
from studio.core.record import RunRecord
from studio.core.text import Text, text
from studio.data.prepare import PreparationStopped, PreparedData, prepare
from studio.data.templates.catalogue import read_choice
from studio.engine.artifact import Fingerprint, fingerprint, load_artifact, save_artifact, verify_artifact
from studio.engine.assembly import load_fast, make_step
from studio.engine.calibrate import keep_what_fits
from studio.engine.checkpoint import (
    Checkpoint,
    list_checkpoints,
    newest_valid,
    require_space,
    save_checkpoint,
    sweep,
)
from studio.engine.decoder_step import DecoderStep
from studio.engine.folder import RunFolder
from studio.engine.ladder import cap_memory, release_memory, retry_with_memory
from studio.engine.recovery import Recovery, is_sticky, may_pass
from studio.engine.samples import Samples
from studio.engine.trainer import Hooks, Trainer, TrainState
from studio.engine.training_state import read_training, write_training
from studio.engine.trial import try_out
from studio.engine.warmup import warm_up
from studio.engine.watch import watch_gpu
from studio.host.failures import diagnose
from studio.host.memory import Calibration
from studio.host.plan import choose_device, gigabytes, limit_memory, memory_share
from studio.host.plan import plan as make_plan
from studio.host.remembered import Load, Remembered
from studio.models.adapt import (
    cast_by_autocast,
    cast_weights,
    load_trained_state,
    trained_state,
    unwrap,
)
from studio.models.catalog import hash_weights
from studio.models.fast import Fast
from studio.models.fetch import DownloadStopped, resolve_model
from studio.models.load import AUTOCAST_DTYPES, DTYPES, Loaded


class Stopped(Exception):
    """The person asked for the end between two phases."""


@dataclass(slots=True)
class Run:
    """What the phases of one run share."""

    recipe: Recipe
    machine: MachineFacts
    folder: RunFolder
    emit: Callable[[RunEvent], None]
    should_stop: Callable[[], bool]
    beat: Callable[[str, int, int], None]
    record: RunRecord
    remembered: Remembered | None = None
    mirror: Mirror = NO_MIRROR
    data_cache: Path | None = None
    should_pause: Callable[[], bool] = lambda: False
    should_save: Callable[[], bool] = lambda: True
    exits: ExitStack = field(default_factory=ExitStack)
    """What is undone at the run's end."""
    timings_s: dict[str, float] = field(default_factory=dict)

    def stop_when_asked(self) -> None:
        """Raise Stopped when the person asked for the end."""
        if self.should_stop():
            raise Stopped

    @contextmanager
    def phase(self, name: str, detail: Text | None = None) -> Iterator[None]:
        """Announce a phase and record how long it took. Raises Stopped when the end was asked for before it."""
        self.stop_when_asked()
        self.emit(PhaseStarted(phase=name, step=self.record.steps, detail=detail))
        self.beat(name, self.record.steps, 0)
        started_s = time.perf_counter()
        yield
        self.timings_s[name] = round(time.perf_counter() - started_s, 3)


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
) -> RunRecord:
    """Train by `recipe` in `folder`, from its newest whole checkpoint when it has one; returns the final run.json.

    Never raises for a failure of the run: that ends as RunFailed with a Diagnosis, its traceback in log.txt.
    `remembered` tells what earlier runs learned of the machine, and takes what this one learns. `leave` is called
    when the GPU can no longer be used by this process: a supervised process ends itself there, and the run resumes
    in a new one; when `leave` returns, or is None, the run fails. `data_cache` keeps converted data sets for the next.
    While `should_pause` says so it holds after a step; a stop while `should_save` says no writes no checkpoint.
    """
    if remembered is not None:
        card = choose_device(machine, recipe)[1]
        machine = remembered.add_experience(machine, card.name if card else "")
    now = {"state": "running", "packages": dict(machine.packages), "diagnosis": None, "ended_s": 0.0}
    record = folder.change_record(lambda kept: dataclasses.replace(kept, **now))
    this = Run(recipe, machine, folder, emit, should_stop, beat, record, remembered, mirror, data_cache)
    this.should_pause, this.should_save = should_pause, should_save
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
        diagnosis = diagnose(error, machine, recipe)
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
    with this.phase("verify"):
        reloaded = load_artifact(this.folder.path, this.record, trained.facts, trained.plan)
        verify_artifact(reloaded, trained.tokenizer, trained.fingerprint, trained.plan.dtype.value)
    this.record = dataclasses.replace(this.record, state="finished")
    this.emit(RunFinished(step=this.record.steps, loss=trained.loss, artifact=this.record.artifact))


@dataclass(frozen=True, slots=True)
class Trained:
    """What is left of a training once its artefact is on disk: enough to check it."""

    facts: ModelFacts
    plan: BackendPlan
    tokenizer: Any
    fingerprint: Fingerprint
    loss: float


def _train(this: Run) -> Trained | None:
    """Load, prepare, train and save; returns None when the person stopped it."""
    recipe, folder = this.recipe, this.folder
    sweep(folder.checkpoints)
    with this.phase("load"):
        source, revision = recipe.model.source, recipe.model.revision
        facts = resolve_model(source, revision, this.emit, this.should_stop, this.mirror)
        # Beside the loading, which waits for disk and card: 2 s for the 16 GB of an 8-billion model.
        hashers = ThreadPoolExecutor(1)
        hashing = hashers.submit(hash_weights, Path(facts.folder))
        hashers.shutdown(wait=False)  # a stop does not wait for it
        device, gpu = choose_device(this.machine, recipe)
        budget_bytes = this.exits.enter_context(cap_memory(device.value, memory_share(this.machine)))
        if gpu is not None and budget_bytes:
            this.machine = limit_memory(this.machine, gpu, budget_bytes)
        plan = make_plan(this.machine, recipe, facts)
        write_json(folder.path / "plan.json", to_json(plan), lasting=True)
        loaded, fast = load_fast(recipe, facts, plan)
        if recipe.data.template:  # the trial, the chat and the artefact then speak as the examples do
            loaded.tokenizer.chat_template = read_choice(recipe.data.template)
        capped = (text("run.memory_capped", gigabytes=gigabytes(budget_bytes)),) if budget_bytes else ()
        this.emit(RunPlanned(plan=plan, swaps=(*fast.describe(), *capped)))
    with this.phase("prepare"):
        data = prepare(
            recipe.data,
            recipe.method,
            loaded.tokenizer,
            seed=recipe.seed,
            cache=this.data_cache,
            vocabulary=facts.vocabulary,
            on_progress=lambda done, total: this.beat("prepare", this.record.steps, done),
            should_stop=this.should_stop,
        )
        if this.record.data_hash not in ("", data.facts.content_hash):
            this.emit(Warned(step=this.record.steps, message=text("run.data_changed")))
        base_hash = hashing.result()
        if this.record.base_hash not in ("", base_hash):
            this.emit(Warned(step=this.record.steps, message=text("run.base_changed", name=facts.name)))
        this.record = dataclasses.replace(
            this.record,
            base=facts.name,
            base_hash=base_hash,
            adapter=recipe.adapter.method == "lora",
            data_hash=data.facts.content_hash,
            gpu=_name_gpu(this.machine, plan.device.value),
        )
        recovery = _make_recovery(this, loaded, plan, fast, budget_bytes)
        trainer = _make_trainer(this, loaded, plan, data, recovery, fast)
        validation_rows = len(data.validation)
        this.emit(
            DataPrepared(facts=data.facts, total_steps=trainer.total_steps, validation_rows=validation_rows)
        )
        _resume(this, loaded, trainer)
        recovery.start_where_it_fitted(trainer.state)
    autocast = plan.dtype.value in AUTOCAST_DTYPES
    with watch_gpu(plan.device.value, this.emit), cast_by_autocast(loaded.model, autocast):
        if fast.ops or fast.decoder:
            with this.phase("compile"):
                warm_up(trainer)

                def note(found: Calibration) -> None:
                    recovery.remember(
                        lambda store: store.note_calibration(this.machine, this.record.gpu, found),
                        trainer.state,
                    )

                said = keep_what_fits(trainer, plan, facts, this.machine, note, cap_bytes=budget_bytes)
                if said is not None:
                    this.emit(Warned(message=said))
        if recipe.limits.trial and trainer.state.step == 0:
            with this.phase("trial"):
                trial = try_out(trainer, loaded, data, facts, this.record, folder, this.stop_when_asked)
                this.emit(trial)
        samples = Samples(trainer, loaded.model, loaded.tokenizer, recipe.seed, recipe.limits.samples)
        trainer.hooks.sample = samples.write
        if samples.due:
            with this.phase("sample"):
                samples.begin()
        started_s = time.perf_counter()
        try:
            outcome = trainer.train()
        finally:
            this.timings_s["train"] = round(time.perf_counter() - started_s, 3)
            _record_progress(this, trainer)
    if outcome.end == "stopped":
        this.record = dataclasses.replace(this.record, state="stopped")
        this.emit(RunStopped(step=outcome.state.step, saved=this.should_save()))
        return None
    if outcome.end == "early":
        this.emit(Warned(step=outcome.state.step, message=text("run.stopped_early", step=outcome.state.step)))
    with this.phase("save"):
        if data.validation and trainer.state.evaluated != trainer.state.step:
            eval_loss = trainer.evaluate()
            this.stop_when_asked()  # which cut the evaluation short
            this.record = dataclasses.replace(this.record, eval_loss=eval_loss)
        with cast_by_autocast(loaded.model, autocast):
            samples.write()
        if isinstance(trainer.step, DecoderStep):
            trainer.step.drop_graphs()
        retry_with_memory(
            fast.undo, trainer.tell_save_freed
        )  # weights that were views get memory of their own
        model = loaded.model
        if not this.record.adapter:
            cast_weights(model, DTYPES[plan.dtype.value])
        expected = fingerprint(model, data.train[0].token_ids.tolist())
        require_space(folder.path, sum(tensor.nbytes for tensor in trained_state(model).values()))
        artifact = retry_with_memory(
            lambda: save_artifact(model, loaded.tokenizer, folder.path, facts, this.record),
            trainer.tell_save_freed,
        )
        this.record = dataclasses.replace(this.record, artifact=artifact)
    return Trained(facts, plan, loaded.tokenizer, expected, outcome.state.last_loss)


def _make_recovery(this: Run, loaded: Loaded, plan: BackendPlan, fast: Fast, budget_bytes: int) -> Recovery:
    load = Load(
        model=this.record.base_hash,
        max_length=this.recipe.data.max_length,
        gpu=this.record.gpu,
        quantization=plan.quantization.value,
        # The decoder needs less than the model's own code: what fitted one says nothing of the other.
        method=this.recipe.adapter.method + (" by decoder" if fast.decoder is not None else ""),
    )
    return Recovery(
        model=unwrap(loaded.model),
        fast=fast,
        device=torch.device(plan.device.value),
        emit=this.emit,
        machine=this.machine,
        load=load,
        budget_bytes=budget_bytes,
        remembered=this.remembered,
        log=this.folder.log,
    )


def _make_trainer(
    this: Run, loaded: Loaded, plan: BackendPlan, data: PreparedData, recovery: Recovery, fast: Fast
) -> Trainer:
    def save(state: TrainState) -> int:
        weights = trained_state(loaded.model)
        size_bytes = sum(tensor.nbytes for tensor in weights.values()) * 3
        require_space(this.folder.path, size_bytes)

        def write(staging: Path) -> None:
            write_training(staging, weights, trainer.state_data())

        return save_checkpoint(
            this.folder.checkpoints, state.step, write, this.recipe.limits.keep_checkpoints
        )[1]

    trainer = Trainer(
        loaded.model,
        make_step(loaded, plan, data.method, fast, this.emit),
        data.train,
        data.validation,
        this.recipe,
        plan.optimizer.value,
        plan.dtype.value,
        torch.device(plan.device.value),
        Hooks(
            emit=this.emit,
            should_stop=this.should_stop,
            save=save,
            beat=this.beat,
            recover=recovery.recover,
            should_pause=this.should_pause,
            should_save=this.should_save,
        ),
    )
    return trainer


def _resume(this: Run, loaded: Loaded, trainer: Trainer) -> None:
    """Go on from the newest whole checkpoint; a broken newer one is reported and left aside as `.broken`."""

    def report(broken: Checkpoint, wrong: Text) -> None:
        this.emit(
            Warned(step=broken.step, message=text("run.checkpoint_broken", step=broken.step, reason=wrong))
        )

    checkpoint = newest_valid(this.folder.checkpoints, report)
    if checkpoint is None:
        return
    weights, state = read_training(checkpoint.path)
    load_trained_state(loaded.model, weights)
    if [*state["kind"], "stock"][:3] != trainer.kind:  # runs of older studios know one kind of step
        raise StudioError(
            text("run.plan_changed"),
            text("run.plan_changed.why", before=" / ".join(state["kind"]), now=" / ".join(trainer.kind)),
            text("run.plan_changed.fix"),
        )
    trainer.load_state_data(state)
    _record_progress(this, trainer)
    this.emit(RunResumed(step=checkpoint.step))


def _record_progress(this: Run, trainer: Trainer) -> None:
    state = trainer.state
    peak = torch.cuda.max_memory_allocated(trainer.device) if trainer.device.type == "cuda" else 0
    this.record = dataclasses.replace(
        this.record,
        steps=state.step,
        total_steps=trainer.total_steps,
        loss=state.last_loss if state.last_loss == state.last_loss else None,
        eval_loss=state.last_eval,
        skipped_steps=state.skipped,
        peak_vram_bytes=max(peak, this.record.peak_vram_bytes),
    )


def _name_gpu(machine: MachineFacts, device: str) -> str:
    """Return the name of the GPU that `cuda` or `cuda:i` stands for, "" for the processor."""
    kind, _, index = device.partition(":")
    maker = "amd" if machine.torch_hip else "nvidia"
    cards = [gpu for gpu in machine.gpus if gpu.vendor == maker]
    return cards[int(index or 0)].name if kind == "cuda" else ""
