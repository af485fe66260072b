"""The training itself, with what goes before it: the reference, the kernels, the trial, the first answers."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from studio.core.codec import to_json
from studio.core.i18n import text
from studio.engine.kernel_compile import warm_up
from studio.engine.memory_calibration import keep_what_fits
from studio.engine.phases.load import record_progress
from studio.engine.preflight import try_out
from studio.engine.reference_logprobs import add_reference
from studio.engine.run_context import Run, Training
from studio.engine.sample_generations import Samples
from studio.engine.trainer import Outcome
from studio.engine.watchdog import watch_gpu
from studio.models.adapt import cast_by_autocast
from studio.models.load import AUTOCAST_DTYPES


@contextmanager
def computing(run: Run, training: Training) -> Iterator[None]:
    """Watch the card, and let the model compute in the plan's dtype, inside."""
    with ExitStack() as exits:
        exits.enter_context(watch_gpu(training.plan.device.value, run.emit))
        exits.enter_context(in_dtype(training))
        yield


def in_dtype(training: Training) -> AbstractContextManager[None]:
    """Return the context in which the model computes in the plan's dtype."""
    return cast_by_autocast(training.loaded.model, training.plan.dtype.value in AUTOCAST_DTYPES)


def compute_reference(run: Run, training: Training) -> None:
    """Let an objective that compares have what the model makes of the examples now. Raises StudioError."""
    if training.trainer.step.objective.needs_reference:
        with run.phase("reference"):
            add_reference(
                training.trainer, run.folder.path, _name_reference(run, training), run.stop_when_asked
            )


def _name_reference(run: Run, training: Training) -> str:
    """Return what log-probabilities hang on: base, adapter to go on with, dtypes, and what makes tokens."""
    plan, recipe = training.plan, run.recipe
    parts = [
        run.record.base_hash, recipe.model.adapter, plan.quantization.value, plan.dtype.value,
        training.prepared.data.facts.content_hash, to_json(recipe.data), recipe.seed,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def compile_kernels(run: Run, training: Training) -> None:
    """Let kernels compile, and keep as much as really fits."""
    trainer, prepared = training.trainer, training.prepared
    if not (training.fast.ops or training.fast.decoder):
        return
    with run.phase("compile"):
        warm_up(trainer)
        note = training.recovery.note_calibration
        said = keep_what_fits(
            trainer, training.plan, prepared.facts, run.machine, note, cap_bytes=prepared.budget_bytes
        )
        if said is not None:
            run.warn(said)


def try_everything(run: Run, training: Training) -> None:
    """Go through what usually breaks late, where the recipe wants it and the run begins. Raises StudioError."""
    trainer, prepared, proof = training.trainer, training.prepared, training.proof
    if not run.recipe.run.trial or trainer.state.step:
        return
    with run.phase("trial"):
        trial = try_out(
            trainer,
            training.loaded,
            prepared.data,
            prepared.facts,
            run.record,
            run.folder,
            run.stop_when_asked,
            proved=proof.holds("writing"),
        )
        run.emit(trial)
        if not trial.left_out:
            training.recovery.remember(lambda store: store.note_proof(proof.key("writing")), trainer.state)


def begin_samples(run: Run, training: Training) -> Samples:
    """Return what writes the model's answers; those before training are written now, unless they can wait."""
    trainer, loaded, recipe = training.trainer, training.loaded, run.recipe
    count = 0 if trainer.step.objective.scores else recipe.run.samples
    data, asked = training.prepared.data, None
    if data.asked is not None:
        asked = (data.validation, data.asked_held_out) if len(data.validation) else (data.train, data.asked)
    samples = Samples(trainer, loaded.model, loaded.tokenizer, recipe.seed, count, asked)
    trainer.hooks.sample, trainer.hooks.stepped = samples.write, samples.catch_up
    if samples.due and not samples.can_wait:
        with run.phase("sample"):
            samples.begin()
    return samples


def train(run: Run, training: Training) -> Outcome:
    """Take the steps; what was reached is recorded however that ends. Raises what the trainer does."""
    started_s = time.perf_counter()
    try:
        outcome = training.trainer.train()
    finally:
        run.timings_s["train"] = round(time.perf_counter() - started_s, 3)
        record_progress(run, training.trainer)
    if outcome.end == "early":
        run.warn(text("run.stopped_early", step=outcome.state.step))
    return outcome
