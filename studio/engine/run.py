"""One run from top to bottom: prepare, plan, load, adapt, fuse, train, save, verify; the only broad `except`."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch

from studio.core.codec import to_json
from studio.core.events import (
    DataPrepared,
    KernelFellBack,
    PhaseStarted,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPlanned,
    RunResumed,
    RunStopped,
    Warned,
)
from studio.core.facts import BackendPlan, MachineFacts
from studio.core.files import write_json
from studio.core.hub_token import NO_MIRROR, Mirror
from studio.core.recipe import Recipe
from studio.core.record import RunRecord
from studio.core.text import Text, text
from studio.data.pack import measure_rows
from studio.data.prepare import PreparationStopped, PreparedData
from studio.engine.artifact import (
    Trained,
    fingerprint,
    load_artifact,
    save_artifact,
    sum_frozen,
    verify_artifact,
)
from studio.engine.base_hash import hash_base
from studio.engine.build import load_fast, make_step
from studio.engine.checkpoint import list_checkpoints, require_space, save_checkpoint, sweep
from studio.engine.checkpoint_state import count_checkpoint, write_training
from studio.engine.decoder_step import DecoderStep
from studio.engine.fault_recovery import Recovery, is_sticky, may_pass
from studio.engine.kernel_compile import warm_up
from studio.engine.memory_calibration import keep_what_fits
from studio.engine.objectives import get_objective
from studio.engine.oom_fallback import cap_memory, release_memory, retry_with_memory
from studio.engine.preflight import try_out
from studio.engine.proof import Proof
from studio.engine.reference import add_reference
from studio.engine.resume import resume
from studio.engine.rows import prepare_rows
from studio.engine.run_folder import RunFolder
from studio.engine.sample_generations import Samples
from studio.engine.train_state import TrainState
from studio.engine.trainer import Hooks, Trainer
from studio.engine.watchdog import watch_gpu
from studio.host.cards import name_card
from studio.host.failures import diagnose
from studio.models.adapt import (
    LITTLE_REACH,
    cast_by_autocast,
    cast_weights,
    measure_reach,
    trained_state,
    unwrap,
)
from studio.models.fetch import DownloadStopped, resolve_model
from studio.models.load import AUTOCAST_DTYPES, DTYPES, Loaded
from studio.models.optimize_model import Fast
from studio.models.weights import Weights
from studio.planning.learned_limits import Load, Remembered
from studio.planning.run_plan import choose_device, gigabytes, limit_memory, memory_share
from studio.planning.run_plan import plan as make_plan
from studio.planning.slow_paths import note_loading, say_slower


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
    weights: Weights | None = None
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
        reloaded = load_artifact(this.folder.path, this.record, trained.facts, trained.plan, trained.base)
        verify_artifact(reloaded, trained.tokenizer, trained.fingerprint, trained.plan.dtype.value)
    this.record = dataclasses.replace(this.record, state="finished")
    this.emit(RunFinished(step=this.record.steps, loss=trained.loss, artifact=this.record.artifact))


def _train(this: Run) -> Trained | None:
    """Prepare, load, train and save; returns None when the person stopped it."""
    recipe, folder = this.recipe, this.folder
    sweep(folder.checkpoints)
    source, revision = recipe.model.source, recipe.model.revision
    facts = resolve_model(source, revision, this.emit, this.should_stop, this.mirror)  # a phase of its own
    with this.phase("prepare"):  # before any weights: what refuses a run for its data takes no loading
        # Beside preparing and loading, which waits for disk and card.
        hashers = ThreadPoolExecutor(1)
        hashing = hashers.submit(hash_base, facts.folder, this.remembered)
        hashers.shutdown(wait=False)  # a stop does not wait for it
        device, gpu = choose_device(this.machine, recipe)
        held_bytes = this.weights.held_bytes if this.weights else 0
        cap = cap_memory(device.value, memory_share(this.machine), held_bytes)
        budget_bytes = this.exits.enter_context(cap)
        tokenizer, data = prepare_rows(
            recipe,
            facts,
            this.data_cache,
            on_progress=lambda done, total: this.beat("prepare", this.record.steps, done),
            should_stop=this.should_stop,
        )
        if this.record.data_hash not in ("", data.facts.content_hash):
            this.emit(Warned(step=this.record.steps, message=text("run.data_changed")))
        for warning in data.warnings:
            this.emit(Warned(step=this.record.steps, message=warning))
    with this.phase("load"):
        if gpu is not None and budget_bytes:
            this.machine = limit_memory(this.machine, gpu, budget_bytes)
        plan = make_plan(this.machine, recipe, facts, measure_rows(data.train))
        write_json(folder.path / "plan.json", to_json(plan), lasting=True)
        card = name_card(this.machine, plan.device.value)
        proof = Proof(
            *(this.remembered, this.machine, card, recipe, plan, Path(facts.folder), hashing.result)
        )
        loaded, fast = load_fast(recipe, facts, plan, tokenizer, this.weights, proof.holds)
        frozen = sum_frozen(loaded.model)
        capped = (text("run.memory_capped", gigabytes=gigabytes(budget_bytes)),) if budget_bytes else ()
        plan = note_loading(plan, fast.refused, fast.twins, this.machine, recipe, facts, gpu)
        this.record = dataclasses.replace(this.record, slower=plan.slower)
        folder.change_record(lambda kept: dataclasses.replace(kept, slower=plan.slower))  # for lists of runs
        this.emit(
            RunPlanned(
                plan=plan,
                swaps=(*fast.describe(), *capped),
                metrics=get_objective(data.method).metrics,
            )
        )
        for op, reason in fast.twins.items():
            this.emit(KernelFellBack(step=this.record.steps, op=op, reason=reason))
        for one in plan.slower:
            this.emit(Warned(step=this.record.steps, message=say_slower(one)))
        if recipe.adapter.targets == "all-linear" and (reach := measure_reach(loaded.model)) < LITTLE_REACH:
            words = text("run.adapter_reach", share=round(100 * reach))
            this.emit(Warned(step=this.record.steps, message=words))
        base_hash = hashing.result()
        if this.record.base_hash not in ("", base_hash):
            this.emit(Warned(step=this.record.steps, message=text("run.base_changed", name=facts.name)))
        this.record = dataclasses.replace(
            this.record,
            base=facts.name,
            base_hash=base_hash,
            adapter=recipe.adapter.method == "lora",
            data_hash=data.facts.content_hash,
            gpu=card,
        )
        recovery = _make_recovery(this, loaded, plan, fast, budget_bytes)
        trainer = _make_trainer(this, loaded, plan, data, recovery, fast)
        validation_rows = len(data.validation)
        this.emit(
            DataPrepared(facts=data.facts, total_steps=trainer.total_steps, validation_rows=validation_rows)
        )
        if resume(folder, loaded.model, trainer, this.emit):
            _record_progress(this, trainer)
            this.emit(RunResumed(step=trainer.state.step))
        recovery.start_where_it_fitted(trainer.state)
        if fast.decoder is not None and fast.fp8_refused is None and not fast.twins:
            recovery.remember(lambda store: store.note_proof(proof.key()), trainer.state)
    autocast = plan.dtype.value in AUTOCAST_DTYPES
    with watch_gpu(plan.device.value, this.emit), cast_by_autocast(loaded.model, autocast):
        if trainer.step.objective.needs_reference:
            with this.phase("reference"):
                add_reference(trainer, folder.path, this.stop_when_asked)
        if fast.ops or fast.decoder:
            with this.phase("compile"):
                warm_up(trainer)
                note = recovery.note_calibration
                said = keep_what_fits(trainer, plan, facts, this.machine, note, cap_bytes=budget_bytes)
                if said is not None:
                    this.emit(Warned(message=said))
        if recipe.limits.trial and trainer.state.step == 0:
            with this.phase("trial"):
                trial = try_out(
                    *(trainer, loaded, data, facts, this.record, folder, this.stop_when_asked),
                    proved=proof.holds("writing"),
                )
                this.emit(trial)
                if not trial.left_out:
                    recovery.remember(lambda store: store.note_proof(proof.key("writing")), trainer.state)
        samples = Samples(trainer, loaded.model, loaded.tokenizer, recipe.seed, recipe.limits.samples)
        trainer.hooks.sample, trainer.hooks.stepped = samples.write, samples.catch_up
        if samples.due and not samples.can_wait:
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
            eval_loss = trainer.evaluate().loss
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
            cast_weights(model, DTYPES[plan.dtype.value], recipe.seed)
        expected = fingerprint(model, data.train[0].token_ids.tolist())
        require_space(folder.path, sum(tensor.nbytes for tensor in trained_state(model).values()))
        artifact = retry_with_memory(
            lambda: save_artifact(model, loaded.tokenizer, folder.path, facts, this.record),
            trainer.tell_save_freed,
        )
        this.record = dataclasses.replace(this.record, artifact=artifact)
        kept = this.record.adapter and sum_frozen(model) == frozen
        base = model.unload() if kept else None
    return Trained(facts, plan, loaded.tokenizer, expected, outcome.state.last_loss, base)


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
        require_space(this.folder.path, count_checkpoint(weights, trainer))

        def write(staging: Path) -> None:
            write_training(staging, weights, trainer.state_data())

        return save_checkpoint(
            this.folder.checkpoints, state.step, write, this.recipe.limits.keep_checkpoints
        )[1]

    trainer = Trainer(
        loaded.model,
        make_step(loaded, plan, data.method, fast, this.emit, packing=this.recipe.data.packing),
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
        micro_batch=plan.micro_batch.value,
    )
    return trainer


def _record_progress(this: Run, trainer: Trainer) -> None:
    state = trainer.state
    peak = torch.cuda.max_memory_allocated(trainer.device) if trainer.device.type == "cuda" else 0
    this.record = dataclasses.replace(
        this.record,
        steps=state.step,
        total_steps=trainer.total_steps,
        loss=state.last_loss if state.last_loss == state.last_loss else None,
        eval_loss=state.last_eval,
        metrics=state.last_metrics,
        skipped_steps=state.skipped,
        peak_vram_bytes=max(peak, this.record.peak_vram_bytes),
    )
