"""The model: planned, loaded, adapted, made fast, and put together with what trains it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from studio.core.atomic_files import write_json
from studio.core.codec import to_json
from studio.core.events import DataPrepared, KernelFellBack, Metric, RunPlanned, RunResumed
from studio.core.facts import BackendPlan
from studio.core.i18n import text
from studio.core.recipe import USUAL_RATE, USUAL_RATES, Recipe, change_recipe, keeps_by, settle_rate
from studio.data.common_beginnings import measure_rows
from studio.data.prepare import PreparedData
from studio.engine.artifact import sum_frozen
from studio.engine.build import load_fast, make_step
from studio.engine.checkpoint import list_checkpoints, require_space, save_checkpoint
from studio.engine.checkpoint_state import count_checkpoint, write_training
from studio.engine.fault_recovery import Recovery
from studio.engine.objectives import read_objective
from studio.engine.objectives.objective import Objective
from studio.engine.phases.rollouts import begin_rollouts, choose_look, describe_rollouts, open_run_rewards
from studio.engine.proof_cache import Proof
from studio.engine.resume import explain_own_code, resume
from studio.engine.run_context import Prepared, Run, Training
from studio.engine.train_state import TrainState
from studio.engine.trainer import Trainer
from studio.engine.trainer_hooks import Hooks
from studio.machine.cards import name_card
from studio.models.adapt import LITTLE_REACH, measure_reach, trained_state, unwrap
from studio.models.load import Loaded
from studio.models.optimize_model import Fast
from studio.planning.learned_limits import Load
from studio.planning.memory_estimate import count_base_file
from studio.planning.run_plan import gigabytes, limit_memory
from studio.planning.run_plan import plan as make_plan
from studio.planning.shared_prompts import tell_shared
from studio.planning.slow_paths import note_loading, say_slower

if TYPE_CHECKING:
    from studio.models.mixed_base import BaseWish


def load(run: Run, prepared: Prepared) -> Training:
    """Plan, load and build the trainer; where the run has a checkpoint, go on from its newest whole one.

    Raises StudioError.
    """
    with run.phase("load"):
        facts, data = prepared.facts, prepared.data
        objective = read_objective(data.method, run.recipe).fit(data.train)
        recipe = run.recipe = _settle(run, objective, data)
        rewards = open_run_rewards(run, data)
        gpu, budget_bytes = prepared.gpu, prepared.budget_bytes
        if gpu is not None and budget_bytes:
            run.machine = limit_memory(run.machine, gpu, budget_bytes)
        rows = measure_rows(objective.view(data.train), objective.sequences)
        plan = make_plan(run.machine, recipe, facts, rows)
        write_json(run.folder.path / "plan.json", to_json(plan), lasting=True)
        card = name_card(run.machine, plan.device.value)
        proof = Proof(
            *(run.remembered, run.machine, card, recipe, plan, Path(facts.folder), prepared.hashing.result)
        )
        base = _wish_base(run, data) if plan.quantization.value == "mixed" else None
        if base is not None and not base.path.is_file():
            require_space(run.folder.path, count_base_file(plan, facts))
        given = (prepared.tokenizer, run.weights, proof.holds, base, explain_own_code(run.folder))
        loaded, fast = load_fast(recipe, facts, plan, *given)
        frozen_sum = sum_frozen(loaded.model)
        capped = (text("run.memory_capped", gigabytes=gigabytes(budget_bytes)),) if budget_bytes else ()
        plan = note_loading(plan, fast.refused, fast.twins, run.machine, recipe, facts, gpu)
        run.change_record(slower=plan.slower)
        run.folder.change_record(
            lambda kept: dataclasses.replace(kept, slower=plan.slower)
        )  # for lists of runs
        run.emit(
            RunPlanned(
                plan=plan,
                swaps=(*fast.describe(), *loaded.notes, *capped, *tell_shared(plan)),
                metrics=(
                    *objective.derived,
                    *describe_rollouts(run, rewards),
                    *objective.metrics,
                    *_describe_kept(recipe),
                ),
            )
        )
        for op, reason in fast.twins.items():
            run.emit(KernelFellBack(step=run.record.steps, op=op, reason=reason))
        for one in plan.slower:
            run.warn(say_slower(one))
        if (
            recipe.adapter.target_modules == "all-linear"
            and (reach := measure_reach(loaded.model)) < LITTLE_REACH
        ):
            run.warn(text("run.adapter_reach", share=round(100 * reach)))
        base_hash = prepared.hashing.result()
        if run.record.base_hash not in ("", base_hash):
            run.warn(text("run.base_changed", name=facts.name))
        run.change_record(
            base=facts.name,
            base_hash=base_hash,
            adapter=recipe.adapter.method == "lora",
            data_hash=data.facts.content_hash,
            gpu=card,
        )
        recovery = _make_recovery(run, loaded, plan, fast, budget_bytes)
        trainer = _make_trainer(run, loaded, plan, data, recovery, fast, objective)
        begin_rollouts(run, trainer, loaded, data, rewards)
        validation_rows = len(data.validation)
        run.emit(
            DataPrepared(facts=data.facts, total_steps=trainer.total_steps, validation_rows=validation_rows)
        )
        if resume(run.folder, loaded.model, trainer, run.emit):
            record_progress(run, trainer)
            run.emit(RunResumed(step=trainer.state.step))
        recovery.start_where_it_fitted(trainer.state)
        if fast.decoder is not None and fast.fp8_refused is None and not fast.twins:
            recovery.remember(lambda store: store.note_proof(proof.key()), trainer.state)
    return Training(
        prepared=prepared,
        plan=plan,
        loaded=loaded,
        fast=fast,
        trainer=trainer,
        recovery=recovery,
        proof=proof,
        frozen_sum=frozen_sum,
        rewards=rewards,
    )


def _wish_base(run: Run, data: PreparedData) -> BaseWish:
    """Return what the run's mixed base is to be made of: rows from all over its data."""
    from studio.models.mixed_base import ROWS, BaseWish  # imports bitsandbytes

    places = sorted({round(i * (len(data.train) - 1) / max(1, ROWS - 1)) for i in range(ROWS)})
    return BaseWish(
        path=run.folder.mixed_base,
        rows=[data.train[i].token_ids.tolist() for i in places],
        more_bits=run.recipe.model.more_bits,
        may_make=not list_checkpoints(run.folder.checkpoints),
        go_on=run.stop_when_asked,
    )


def _settle(run: Run, objective: Objective, data: PreparedData) -> Recipe:
    """Return the recipe with the objective that the data chose, and its learning rate where nobody set one; say so.

    What learns from its own answers looks at held-out ones on its way, and keeps what these were best with: rewards
    can be led astray.
    """
    recipe = change_recipe(run.recipe, {"objective": objective.name})
    if data.asked_held_out is not None and len(data.asked_held_out):
        recipe = choose_look(recipe, objective, data)
    settled = settle_rate(recipe)
    if settled is not recipe and objective.name in USUAL_RATES:
        rate = settled.optim.learning_rate
        run.warn(text("run.usual_rate", rate=f"{rate:g}", default=f"{USUAL_RATE:g}"))
    return settled


def _describe_kept(recipe: Recipe) -> tuple[Metric, ...]:
    """Return the metric that the best state is kept by: each evaluation measures it."""
    keeps = keeps_by(recipe.run)
    return () if keeps in ("last", "loss") else (Metric(name=keeps, unit="share", better="higher"),)


def _make_recovery(run: Run, loaded: Loaded, plan: BackendPlan, fast: Fast, budget_bytes: int) -> Recovery:
    load = Load(
        model=run.record.base_hash,
        max_length=run.recipe.data.max_length,
        gpu=run.record.gpu,
        quantization=plan.quantization.value,
        # The decoder needs less than the model's own code: what fitted one says nothing of the other.
        method=run.recipe.adapter.method + (" by decoder" if fast.decoder is not None else ""),
    )
    return Recovery(
        model=unwrap(loaded.model),
        fast=fast,
        device=torch.device(plan.device.value),
        emit=run.emit,
        machine=run.machine,
        load=load,
        budget_bytes=budget_bytes,
        remembered=run.remembered,
        log=run.folder.log,
    )


def _make_trainer(
    run: Run,
    loaded: Loaded,
    plan: BackendPlan,
    data: PreparedData,
    recovery: Recovery,
    fast: Fast,
    objective: Objective,
) -> Trainer:
    def save(state: TrainState) -> int:
        weights = trained_state(loaded.model)
        require_space(run.folder.path, count_checkpoint(weights, trainer))

        def write(staging: Path) -> None:
            write_training(staging, weights, trainer.state_data())

        return save_checkpoint(run.folder.checkpoints, state.step, write, run.recipe.run.keep_checkpoints)[1]

    trainer = Trainer(
        loaded.model,
        make_step(loaded, plan, objective, fast, run.emit, packing=run.recipe.data.packing),
        data.train,
        data.validation,
        run.recipe,
        plan.optimizer.value,
        plan.dtype.value,
        torch.device(plan.device.value),
        Hooks(
            emit=run.emit,
            should_stop=run.should_stop,
            save=save,
            beat=run.beat,
            recover=recovery.recover,
            should_pause=run.should_pause,
            should_save=run.should_save,
        ),
        micro_batch=plan.micro_batch.value,
    )
    return trainer


def record_progress(run: Run, trainer: Trainer) -> None:
    state = trainer.state
    peak = torch.cuda.max_memory_allocated(trainer.device) if trainer.device.type == "cuda" else 0
    run.record = dataclasses.replace(
        run.record,
        steps=state.step,
        total_steps=trainer.total_steps,
        loss=state.last_loss if state.last_loss == state.last_loss else None,
        **trainer.tell_evaluated(state.last_eval),
        metrics=state.last_metrics,
        skipped_steps=state.skipped,
        peak_vram_bytes=max(peak, run.record.peak_vram_bytes),
    )
